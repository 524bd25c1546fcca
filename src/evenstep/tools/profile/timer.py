"""Repeated timings of functions, in turn, until a share of the time is spent.

What runs out of memory meanwhile is recognised, and what a failed attempt still holds is freed.
Running out of memory shows in many ways: torch's exception, errors of CUDA libraries, the operating
system's SIGKILL, or a launcher's report of it.
"""

from __future__ import annotations

import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evenstep.errors import EvenstepError

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


RAISED = re.compile(r"OutOfMemoryError|(CUDA|HIP|XPU) out of memory|CUDA error: out of memory")
"""Printed by a process that ran out of memory, even if it caught the exception."""
DIED = re.compile(
    RAISED.pattern + r"|^(\[rank\d+\]: ?)?MemoryError\b"
    r"|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"
    r"|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    # torchrun's report of a rank that was killed, and evenstep's of a worker.
    r"|Signal 9 \(SIGKILL\)|exitcode\s*:\s*-9\b|was killed by SIGKILL",
    re.MULTILINE,
)
"""Printed by a process that died, if memory was the reason."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of this process means that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Libraries that cannot allocate raise plain RuntimeErrors.
    return not isinstance(error, EvenstepError) and bool(DIED.search(str(error)))


def free_memory() -> None:
    """Frees the tensors of a failed attempt. Call it outside the exception handler: inside, the
    exception still holds the frames, and these hold the tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
