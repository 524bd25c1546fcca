"""Repeated timings of functions, in turn, until a share of the time is spent.

What runs out of memory meanwhile is recognised, and what a failed attempt still holds is freed.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

_REPEATS = (3, 50)
"""Fewest and most repeats."""
_SHORTEST = 0.005
"""Seconds of one timing, at least. A faster function is called several times in a row, as in a
training, where a GPU computes one operation while the next is launched."""


def time_in_turn(
    functions: Sequence[Callable[[], object]],
    *,
    synchronize: Callable[[], None],
    share: float,
    limit: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Times functions that have run before, in turn, so that a temporary slowdown of the machine
    affects all of them.

    Args:
        synchronize: waits until all work that a call launched is done.
        share: seconds after which no repeat begins, except for the fewest.
        limit: seconds after which no repeat begins, except for the first.
        clock: returns seconds.

    Returns:
        For each function the median of its repeats, in seconds of one call.
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
    return [statistics.median(times) for times in found]


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out: CUDA libraries and the CPU's allocator raise
    plain RuntimeErrors."""
    said = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in said)
    )


def free_memory() -> None:
    """Frees the tensors of a failed attempt. Call it outside the exception handler: inside, the
    exception still holds the frames, and these hold the tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
