"""Sources out of arrays of lengths, and what is read off a mixture's draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import SampleTable


class Arrays:
    """`Metadata` of sources with these lengths, read again and again or once."""

    def __init__(self, lengths: Mapping[str, Sequence[int]], *, endless: bool = True) -> None:
        self.sources = tuple(lengths)
        self.lengths = [np.asarray(values, np.int64) for values in lengths.values()]
        self.endless = endless
        self.furthest = [0] * len(self.sources)

    @property
    def sizes(self) -> dict[str, int | None]:
        return {name: len(lengths) for name, lengths in zip(self.sources, self.lengths)}

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        lengths = self.lengths[source]
        at = np.arange(position, position + count)
        if not self.endless:
            at = at[at < len(lengths)]
        self.furthest[source] = max(self.furthest[source], position + len(at))
        index = at % max(len(lengths), 1)
        return SampleTable(
            self.sources,
            np.full(len(at), source, np.int32),
            at,
            (index // 7).astype(np.int32),
            index % 7,
            {"text": lengths[index]},
        )


class AtOnce(Arrays):
    """The same, asked for many sources at once and never for one."""

    def ahead_of_many(self, sources: Any, positions: Any, counts: Any) -> SampleTable:
        assert (np.diff(sources) > 0).all()
        asked = zip(sources.tolist(), positions.tolist(), counts.tolist())
        return SampleTable.concatenate([super(AtOnce, self).ahead(*each) for each in asked])

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        raise AssertionError("asked for one source")


def drawn(table: SampleTable) -> list[tuple[int, int]]:
    """(source, position) of each draw, in order."""
    return list(zip(table.source.tolist(), table.position.tolist()))


def steps(mixture: Mixer, provider: Any, count: int) -> list[list[tuple[int, int]]]:
    """The draws of the next steps, until the mixture ends."""
    found: list[list[tuple[int, int]]] = []
    while len(found) < count and not mixture.ended:
        found.append(drawn(mixture.draw(mixture.step, provider)))
    return found


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


@st.composite
def worlds(draw: st.DrawFn, *, least: int = 1) -> dict[str, list[int]]:
    """A few sources, of short samples or of very unlike ones."""
    count = draw(st.integers(1, 5))
    return {
        f"s{k}": draw(
            st.lists(st.integers(1, 10 ** draw(st.integers(1, 3))), min_size=least, max_size=30)
        )
        for k in range(count)
    }


@st.composite
def weights_of(draw: st.DrawFn, sources: Sequence[str]) -> dict[str, float]:
    values = draw(st.lists(st.integers(0, 20), min_size=len(sources), max_size=len(sources)))
    if not any(values):
        values[0] = 1
    return {name: value / 7 for name, value in zip(sources, values)}
