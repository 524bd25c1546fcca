"""Samples and meshes for tests of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from evenstep.mixture.sample_table import Metadata, SampleTable
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


@dataclass
class Batches:
    """Draws tables one after the other, and counts how often it is asked."""

    tables: list[SampleTable]
    asked: list[int] = field(default_factory=list)

    def draw(self, step: int, provider: Metadata) -> SampleTable:
        self.asked.append(step)
        return self.tables[step]

    def weights_at(self, step: int) -> dict[str, float]:
        return {"a": 0.5, "b": 0.25, "c": 0.25}


class Nothing:
    """Metadata of a job whose mixture needs none."""

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        raise AssertionError("nobody asks")
