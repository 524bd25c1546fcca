"""Repeated timings of functions, in turn, until a share of the time is spent."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_REPEATS = (3, 50)
"""Fewest and most repeats."""
_SHORTEST = 0.005
"""Seconds of one timing, at least. A faster function is called several times in a row, as in a
training, where a GPU computes one operation while the next is launched."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one call."""

    seconds: float
    """The median of the repeats."""
    low: float
    high: float
    """The quartiles: half of the repeats lie between them."""
    repeats: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Median and quartiles of the seconds of each repeat."""
        low, middle, high = statistics.quantiles(
            seconds if len(seconds) > 1 else 2 * list(seconds), n=4, method="inclusive"
        )
        return cls(seconds=middle, low=low, high=high, repeats=len(seconds))


def time_in_turn(
    functions: Sequence[Callable[[], object]],
    *,
    synchronize: Callable[[], None],
    share: float,
    limit: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Times functions that have run before, in turn, so that a temporary slowdown of the machine
    affects all of them.

    Args:
        synchronize: waits until all work that a call launched is done.
        share: seconds after which no repeat begins, except for the fewest.
        limit: seconds after which no repeat begins, except for the first.
        clock: returns seconds.
    """
    begin = clock()

    def timed(function: Callable[[], object], calls: int) -> float:
        synchronize()
        before = clock()
        for _ in range(calls):
            function()
        synchronize()
        return (clock() - before) / calls

    # This is the second call: the first may have chosen kernels.
    once = [timed(function, 1) for function in functions]
    calls = [max(1, math.ceil(_SHORTEST / max(seconds, 1e-7))) for seconds in once]
    found: list[list[float]] = [[] for _ in functions]
    fewest, most = _REPEATS
    for repeat in range(most):
        passed = clock() - begin
        if (repeat >= fewest and passed >= share) or (repeat and passed >= limit):
            break
        for times, function, number in zip(found, functions, calls):
            times.append(timed(function, number))
    return [Timing.of(times) for times in found]
