"""`DrawRecord`: a step's draws as a plan log keeps them, and how they are recovered from it.

It has no entry per draw. The pattern of a step is a function of (seed, step), so the shares that
divide it, and the positions that each source gave, determine every draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.mixture.pattern import even_points, labels, points, shuffled


@dataclass(frozen=True)
class Phase:
    """Shares of the pattern from a draw on."""

    begin: int
    """Number of the draw."""
    shares: Mapping[str, float]
    """By name, in any unit; 0 for a source that is not named."""


@dataclass(frozen=True, kw_only=True)
class DrawRecord:
    """The draws of one step. JSON-able by `to_dict`."""

    step: int
    samples: int | None
    """Draws of the step, unless the mixture ended before; None if tokens limited it."""
    weights: Mapping[str, float]
    """As the schedule gave them."""
    counts: Mapping[str, int]
    """Samples by source; those that gave none are left out."""
    positions: Mapping[str, Sequence[tuple[int, int]]]
    """By source, the positions that were drawn, in order, as runs (first, last + 1)."""
    tokens: Mapping[str, int]
    """By source, of its samples."""
    phases: Sequence[Phase]
    signals: Mapping[str, Any] | None
    """What trainers had reported, if the schedule uses it."""
    ended: bool
    """Whether the mixture ended with this step."""
    bad: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """By source, the positions of samples that were passed over because they cannot be used."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"positions": _lists(self.positions), "bad": _lists(self.bad)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DrawRecord:
        """Inverse of `to_dict`, also after a round trip through JSON."""
        positions, bad = _tuples(given["positions"]), _tuples(given.get("bad", {}))
        phases = tuple(Phase(p["begin"], dict(p["shares"])) for p in given["phases"])
        return cls(**{**given, "positions": positions, "phases": phases, "bad": bad})


_Runs = Mapping[str, Sequence[tuple[int, int]]]
"""Positions by source."""


def _lists(runs: _Runs) -> dict[str, list[list[int]]]:
    return {name: [list(run) for run in of_source] for name, of_source in runs.items()}


def _tuples(runs: _Runs) -> dict[str, tuple[tuple[int, int], ...]]:
    return {name: tuple((int(a), int(b)) for a, b in of) for name, of in runs.items()}


def sequence(
    seed: int,
    step: int,
    count: int,
    phases: Sequence[tuple[int, Float64Array]],
    *,
    samples: int | None,
) -> Int64Array:
    """[count] sources of a step's first draws, before they are shuffled.

    Args:
        phases: first draw of each, and [sources] shares from there on.
        samples: draws of the whole step; None if that is not known in advance.
    """
    at = points(seed, step, count) if samples is None else even_points(seed, step, samples)[:count]
    ends = [*(begin for begin, _ in phases), count]
    parts = [
        labels(at[begin:end], shares) for (begin, end), (_, shares) in zip(pairwise(ends), phases)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def runs_of(positions: Int64Array, counts: Int64Array) -> list[tuple[tuple[int, int], ...]]:
    """[groups] ascending positions as runs (first, last + 1).

    ``runs_of([3, 4, 7, 0, 1], [3, 2])`` is ``[((3, 5), (7, 8)), ((0, 2),)]``.

    Args:
        positions: [sum of counts] of one group after the other.
        counts: [groups] positions of each, at least 1.
    """
    ends = counts.cumsum()
    new_run = np.ones(len(positions), np.bool_)  # [sum of counts]
    new_run[1:] = np.diff(positions) != 1
    new_run[ends[:-1]] = True
    begins = np.flatnonzero(new_run)  # [runs]
    lasts = np.append(begins, len(positions))[1:] - 1  # [runs]
    spans = list(zip(positions[begins].tolist(), (positions[lasts] + 1).tolist()))
    cuts = [0, *begins.searchsorted(ends).tolist()]
    return [tuple(spans[a:b]) for a, b in pairwise(cuts)]


def redrawn(record: DrawRecord, sources: Sequence[str], seed: int) -> tuple[Int64Array, Int64Array]:
    """The draws of a step from its record alone: without schedule, signals or samples.

    Returns:
        [draws] source of each, and [draws] its position.
    """
    shares = [
        (phase.begin, np.array([phase.shares.get(name, 0.0) for name in sources]))
        for phase in record.phases
    ]
    count = sum(record.counts.values())
    drawn = shuffled(
        sequence(seed, record.step, count, shares, samples=record.samples), seed, record.step
    )
    positions = np.empty(count, np.int64)
    for number, name in enumerate(sources):
        if name in record.counts:
            spans = [np.arange(*span) for span in record.positions[name]]
            positions[drawn == number] = np.concatenate(spans)
    return drawn, positions
