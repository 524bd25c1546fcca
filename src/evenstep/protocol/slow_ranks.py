"""Which ranks need more time than their work explains: slow devices, and not long data.

Each rank times its own part of its steps, up to where it waits for the others, and tells its pace
over the last `WINDOW` steps, by medians, which a slow step or evaluation does not move. A rank is
slow where its time exceeds that of the other ranks, and so does its time over its cost: it is late
neither because of its work, nor by a cost that is wrong of ranks with little work. It must exceed
them by 3 %, and by more than its pace varies by itself.

This is observing only: no plan depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Float64Array, Int64Array

BLOCK = 25
"""Steps after which a rank's pace is found anew."""
_BLOCKS = 4
WINDOW = _BLOCKS * BLOCK
_UNIT = 1000.0
"""Of a logarithm: a thousandth is 0.1 %."""
_LEAST = 30.0
_SURE = 6.0
"""How many times as much as it varies a rank's pace must exceed that of others."""


class OwnPace(NamedTuple):
    """What a rank tells of itself, in thousandths of a logarithm."""

    block: int
    """Blocks of `BLOCK` steps that it has made."""
    time: int
    """Its nanoseconds of a step; 0 if it does not know them."""
    rate: int
    """Its nanoseconds over its cost."""
    noise: int
    """How far the rate may be off: the standard error."""


UNTIMED = OwnPace(0, 0, 0, 0)


def pace_of(block: int, blocks: Sequence[Float64Array]) -> OwnPace:
    """
    Args:
        blocks: `[2, updates]` each, of the last blocks: nanoseconds of a step, and over its cost.
            None of an update that was not timed.
    """
    last = blocks[-_BLOCKS:]
    if len(last) < _BLOCKS or not all(each.size for each in last):
        return OwnPace(block, 0, 0, 0)
    logs = _UNIT * np.log(np.concatenate(last, axis=1))
    time, rate = np.median(logs, axis=1)
    spread = np.median(np.abs(logs[1] - rate))  # 0.67 standard deviations
    noise = 1.86 * float(spread) / math.sqrt(logs.shape[1])  # of a median
    return OwnPace(block, max(round(time), 1), round(rate), math.ceil(noise))


class SlowRank(NamedTuple):
    """A rank whose time its work does not explain."""

    rank: int
    share: float
    """How much more time it needs than its work explains, as a share of that."""
    epoch: int
    step: int
    """Of the epoch: since then, nearly."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} needs {self.share:.0%} more time than its work explains, since step "
            f"{self.step:,} of epoch {self.epoch}"
        )


class SlowRanks:
    """Of one job: what all ranks have told, in order. Equal on all ranks."""

    def __init__(self) -> None:
        self.slow: tuple[SlowRank, ...] | None = None
        """The slowest first; None until paces are known."""
        self._block = -1

    def add(self, paces: Int64Array, begins: Sequence[tuple[int, int]]) -> None:
        """
        Args:
            paces: [ranks, 4], see `OwnPace`.
            begins: epoch and step at which each block begins.
        """
        block, known = int(paces[:, 0].min()), paces[:, 1] > 0
        if block <= self._block or np.count_nonzero(known) < 2:
            return
        before, self._block = self._block, block
        times, rates, noises = paces[:, 1:].T.astype(np.float64)
        excess = np.minimum(_over_median(times, known), _over_median(rates, known))
        most = np.maximum(_LEAST, _SURE * np.maximum(noises, np.median(noises[known])))
        known_slow = {each.rank: each for each in self.slow or ()}
        # One that was slow stays so until it clearly is not.
        ratio = excess / np.where(np.isin(np.arange(len(paces)), list(known_slow)), most / 2, most)
        # A median moves when half of the window has: between this time and the one before.
        since = begins[min(max((before + block) // 2 - _BLOCKS // 2, 0), len(begins) - 1)]
        self.slow = tuple(
            SlowRank(
                rank,
                math.expm1(excess[rank] / _UNIT),
                *(known_slow[rank][2:] if rank in known_slow else since),
            )
            for rank in np.argsort(-excess, kind="stable").tolist()
            if ratio[rank] >= 1
        )


def _over_median(values: Float64Array, known: np.ndarray) -> Float64Array:
    """How far each is above the lower median of those known; 0 of the others."""
    among = np.sort(values[known])
    return np.where(known, values - among[(len(among) - 1) // 2], 0.0)
