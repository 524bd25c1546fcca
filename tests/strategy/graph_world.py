"""Samples and meshes for tests of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import Metadata, SampleTable
from evenstep.mixture.step_draws import DrawRecord
from evenstep.strategy.mesh import AXES, ClientPlaceTree


def table(
    text: Sequence[int], image: Sequence[int] | None = None, *, sources: int = 3, first: int = 0
) -> SampleTable:
    """Samples of sources in turn; positions of each source count from `first`."""
    count = np.arange(len(text))
    position = first + count // sources
    lengths = {"text": text} if image is None else {"text": text, "image": image}
    return SampleTable(
        tuple("abcdefgh"[:sources]),
        count % sources,
        position,
        position // 10,
        position % 10,
        {name: np.array(column, np.int64) for name, column in lengths.items()},
    )


def squares(lengths: np.ndarray) -> np.ndarray:
    """What attention computes."""
    return lengths * lengths


def meshes(most: int = 3) -> st.SearchStrategy[ClientPlaceTree]:
    sizes = st.tuples(*[st.integers(1, most)] * 4)
    return sizes.map(lambda found: ClientPlaceTree.of(dict(zip(AXES, found))))


class Batches(Mixer):
    """Draws tables one after the other."""

    def __init__(self, tables: list[SampleTable]) -> None:
        super().__init__("abc", {"a": 0.5, "b": 0.25, "c": 0.25}, samples_per_step=1)
        self.tables = tables

    def draw_with(self, step: int, provider: Metadata, schedule: Any = None) -> SampleTable:
        weights = {"a": 0.5, "b": 0.25, "c": 0.25}
        self.record = DrawRecord(step=step, weights=weights)
        return self.tables[step]


class Nothing:
    """Metadata of a job whose mixture needs none."""

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        raise AssertionError("nobody asks")
