"""The jobs that are explored. Samples have two or three lengths, windows hold 1 to 4 samples."""

from __future__ import annotations

from dataclasses import replace

from model_job import Job

from evenstep.plan import Even, FixedBatch, TokenBudget
from evenstep.plan.policies.pool_sort import PoolSort
from few_steps import FewSteps

LENGTHS = (3, 5, 3, 3, 5, 3)
FIRST_WINDOW = 3
"""Samples of the first window under buffer_size="auto", in place of 256."""
MEMORY = 192
"""Bytes of little memory: for 12 tokens in each of two windows."""

ONE_STEP = FewSteps(8, max_wait=1, steps=1)

_SMALL = {
    "fixed batches": Job(FixedBatch(2), LENGTHS[:5]),
    "fixed batches, last ones dropped": Job(
        FixedBatch(2, drop_last=True), LENGTHS[:3], orders=((0, 1, 2), (0,))
    ),
    "updates of 2 steps": Job(FixedBatch(1), LENGTHS[:5], accumulate=2),
    "all stop with the first": Job(
        FixedBatch(1), LENGTHS, orders=((0, 1, 2), (3, 4, 5)), exhausted="stop"
    ),
    "all stop with the first, last ones dropped": Job(
        FixedBatch(2, drop_last=True), LENGTHS[:4], orders=((0, 1, 2, 3), (0,)), exhausted="stop"
    ),
    "a step a round, shares unknown": Job(
        ONE_STEP, LENGTHS[:4], orders=((0, 1, 2), (3,)), sized=False
    ),
    "no sample waits for ever": Job(
        ONE_STEP, (5,) + (3,) * 8, ranks=1, buffer_size=3, chunks=(9,), longest_wait=2
    ),
    "shares known, all run out together": Job(
        TokenBudget(9),
        (3,) * 12,
        orders=(tuple(range(8)), tuple(range(8, 12))),
        buffer_size=4,
        chunks=(9,),
        together=True,
    ),
    "a rank without samples": Job(TokenBudget(8), LENGTHS[:3], orders=((), (1, 2, 0))),
    "bad samples": Job(
        TokenBudget(8), LENGTHS, orders=((0, 1, 2), (3, 4, 5)), bad=frozenset({0, 4})
    ),
    "sorted pools": Job(PoolSort(2), LENGTHS[:5]),
    "even, own samplers": Job(
        Even(8, max_wait=1), LENGTHS[:5], orders=((0, 1, 2, 3), (4,)), chunks=(1,)
    ),
    "even, dealt": Job(Even(8), (5, 3) * 3, chunks=(1,)),
    "even, dealt one by one": Job(Even(8), LENGTHS, buffer_size=1, chunks=(1,)),
    "even, dealt, until the first runs out": Job(
        Even(8), LENGTHS[:5], exhausted="stop", chunks=(1,)
    ),
    "even, dealt, most samples bad": Job(
        Even(8), LENGTHS[:4], buffer_size=1, bad=frozenset({0, 1, 2})
    ),
    "even and packed, dealt": Job(Even(8, packed=True), LENGTHS[:5]),
    "even, windows grow": Job(
        Even(8), (1, *LENGTHS[1:]), orders=((0, 1), (2, 3, 4, 5)), buffer_size="auto", memory=MEMORY
    ),
    "even, windows shrink to what memory allows": Job(
        Even(12),
        (12, 11, 12, 11, 12),
        orders=((0, 1, 2, 3, 4), (4, 3)),
        sized=False,
        buffer_size="auto",
        memory=MEMORY,
        chunks=(9,),
    ),
    "even, dealt, windows of what memory allows": Job(
        Even(8), (5, 3, 5, 3, 5), buffer_size=4, memory=MEMORY // 2, bad=frozenset({1}), chunks=(1,)
    ),
    "fixed windows of what memory allows": Job(
        TokenBudget(8), LENGTHS, orders=((0, 1, 2, 3), (4, 5)), buffer_size=4, memory=MEMORY // 2
    ),
    "three ranks": Job(Even(8), LENGTHS, ranks=3, chunks=(1,)),
    "three ranks, own samplers": Job(
        ONE_STEP, LENGTHS[:5], ranks=3, orders=((0, 1), (2,), (3, 4)), chunks=(9,)
    ),
    "three ranks, one without samples": Job(
        TokenBudget(8), LENGTHS[:3], ranks=3, orders=((), (0, 1), (2,)), chunks=(9,)
    ),
}
_LARGE = {
    "large: windows of 4, a step a round": Job(
        ONE_STEP, (*LENGTHS, 5, 3, 3), orders=((0, 1, 2, 3, 4, 5), (6, 7, 8)), buffer_size=4
    ),
    "large: windows of 3, even, dealt": Job(
        Even(8), (*LENGTHS, 5, 3, 7, 1), buffer_size=3, bad=frozenset({4})
    ),
    "large: three ranks, shares unknown": Job(
        ONE_STEP, (*LENGTHS, 5), ranks=3, orders=((0, 1, 2), (3, 4), (5, 6)), sized=False
    ),
    "large: three ranks, updates of 2 steps": Job(FixedBatch(1), LENGTHS, ranks=3, accumulate=2),
    "large: three ranks, even, dealt": Job(Even(8), (*LENGTHS, 5, 3), ranks=3, buffer_size=1),
    "large: three ranks, even and packed": Job(
        Even(8, packed=True), (*LENGTHS, 5, 3, 3), ranks=3, buffer_size=3
    ),
    "large: three ranks, until the first runs out": Job(
        Even(8), (*LENGTHS, 5), ranks=3, exhausted="stop", bad=frozenset({1, 2}), chunks=(1,)
    ),
    "large: three ranks, windows grow": Job(
        Even(8),
        (1, *LENGTHS[1:]),
        ranks=3,
        orders=((0, 1), (2, 3, 4, 5), (5, 1)),
        buffer_size="auto",
        memory=MEMORY,
    ),
}
SMALL, LARGE = (
    {name: replace(job, name=name) for name, job in jobs.items()} for jobs in (_SMALL, _LARGE)
)
