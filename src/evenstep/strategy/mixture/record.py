"""`DrawRecord`: what a plan log keeps of one step's draws, and the draws out of it again.

It has no entry per draw. The pattern of a step is a function of (seed, step), so the shares by
which it was divided, and how many samples each source gave from which position on, say all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.strategy.mixture.pattern import labels, points, shuffled

__all__ = ["DrawRecord", "Phase", "redrawn", "runs_of", "sequence"]


@dataclass(frozen=True)
class Phase:
    """From a draw on, the sources have these shares of the pattern."""

    begin: int
    shares: Mapping[str, float]
    """By name, in any unit; a source that is not named has none."""


@dataclass(frozen=True, kw_only=True)
class DrawRecord:
    """Of one step. JSON-able by `to_dict`."""

    step: int
    weights: Mapping[str, float]
    """As the schedule gave them."""
    counts: Mapping[str, int]
    """Samples of each source; those that gave none are left out."""
    positions: Mapping[str, Sequence[tuple[int, int]]]
    """By name, the positions that were drawn, in order, as runs from the first to behind the
    last."""
    tokens: Mapping[str, int]
    """Of the samples of each source."""
    phases: Sequence[Phase]
    signals: Mapping[str, Any] | None
    """What trainers had reported, where the schedule asked for it."""
    ended: bool
    """Whether the mixture ended with this step."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"positions": {n: [list(r) for r in v] for n, v in self._runs()}}

    def _runs(self) -> list[tuple[str, Sequence[tuple[int, int]]]]:
        return list(self.positions.items())

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DrawRecord:
        """Of what `to_dict` made, by way of JSON or not."""
        positions = {
            n: tuple((int(a), int(b)) for a, b in r) for n, r in given["positions"].items()
        }
        phases = tuple(Phase(p["begin"], dict(p["shares"])) for p in given["phases"])
        return cls(**{**given, "positions": positions, "phases": phases})


def sequence(
    seed: int, step: int, count: int, phases: Sequence[tuple[int, Float64Array]]
) -> Int64Array:
    """[count] sources of a step's draws, before they are shuffled.

    Args:
        phases: first draw, and [sources] shares from there on.
    """
    at = points(seed, step, count)
    ends = [*(begin for begin, _ in phases), count]
    parts = [
        labels(at[begin:end], shares) for (begin, end), (_, shares) in zip(pairwise(ends), phases)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def runs_of(positions: Int64Array, counts: Int64Array) -> list[tuple[tuple[int, int], ...]]:
    """Ascending numbers as runs of successive ones, from the first to behind the last.

    Args:
        positions: [sum of counts] of one group after the other.
        counts: [groups] numbers of each, at least 1.

    Returns:
        [groups]
    """
    ends = counts.cumsum()
    fresh = np.ones(len(positions), np.bool_)
    fresh[1:] = np.diff(positions) != 1
    fresh[ends[:-1]] = True
    begins = np.flatnonzero(fresh)
    lasts = np.append(begins, len(positions))[1:] - 1
    spans = list(zip(positions[begins].tolist(), (positions[lasts] + 1).tolist()))
    cuts = [0, *begins.searchsorted(ends).tolist()]
    return [tuple(spans[a:b]) for a, b in pairwise(cuts)]


def redrawn(record: DrawRecord, sources: Sequence[str], seed: int) -> tuple[Int64Array, Int64Array]:
    """The draws of a step out of its record: neither schedule, nor signals, nor samples are needed.

    Returns:
        [draws] source of each, and [draws] its position.
    """
    shares = [
        (phase.begin, np.array([phase.shares.get(name, 0.0) for name in sources]))
        for phase in record.phases
    ]
    count = sum(record.counts.values())
    drawn = shuffled(sequence(seed, record.step, count, shares), seed, record.step)
    positions = np.empty(count, np.int64)
    for number, name in enumerate(sources):
        if name in record.counts:
            spans = [np.arange(*span) for span in record.positions[name]]
            positions[drawn == number] = np.concatenate(spans)
    return drawn, positions
