"""The jobs that are explored. Samples have two or three lengths, windows hold 1 to 4 samples."""

from __future__ import annotations

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

_SMALL = [
    Job(name="fixed batches", policy=FixedBatch(2), lengths=LENGTHS[:5]),
    Job(
        name="fixed batches, last ones dropped",
        policy=FixedBatch(2, drop_last=True),
        lengths=LENGTHS[:3],
        orders=((0, 1, 2), (0,)),
    ),
    Job(name="updates of 2 steps", policy=FixedBatch(1), lengths=LENGTHS[:5], accumulate=2),
    Job(
        name="all stop with the first",
        policy=FixedBatch(1),
        lengths=LENGTHS,
        orders=((0, 1, 2), (3, 4, 5)),
        exhausted="stop",
    ),
    Job(
        name="all stop with the first, last ones dropped",
        policy=FixedBatch(2, drop_last=True),
        lengths=LENGTHS[:4],
        orders=((0, 1, 2, 3), (0,)),
        exhausted="stop",
    ),
    Job(
        name="a step a round, shares unknown",
        policy=ONE_STEP,
        lengths=LENGTHS[:4],
        orders=((0, 1, 2), (3,)),
        sized=False,
    ),
    Job(
        name="no sample waits for ever",
        policy=ONE_STEP,
        lengths=(5,) + (3,) * 8,
        ranks=1,
        buffer_size=3,
        chunks=(9,),
        longest_wait=2,
    ),
    Job(
        name="shares known, all run out together",
        policy=TokenBudget(9),
        lengths=(3,) * 12,
        orders=(tuple(range(8)), tuple(range(8, 12))),
        buffer_size=4,
        chunks=(9,),
        together=True,
    ),
    Job(
        name="a rank without samples",
        policy=TokenBudget(8),
        lengths=LENGTHS[:3],
        orders=((), (1, 2, 0)),
    ),
    Job(
        name="bad samples",
        policy=TokenBudget(8),
        lengths=LENGTHS,
        orders=((0, 1, 2), (3, 4, 5)),
        bad=frozenset({0, 4}),
    ),
    Job(name="sorted pools", policy=PoolSort(2), lengths=LENGTHS[:5]),
    Job(
        name="even, own samplers",
        policy=Even(8, max_wait=1),
        lengths=LENGTHS[:5],
        orders=((0, 1, 2, 3), (4,)),
        chunks=(1,),
    ),
    Job(name="even, dealt", policy=Even(8), lengths=(5, 3) * 3, chunks=(1,)),
    Job(name="even, dealt one by one", policy=Even(8), lengths=LENGTHS, buffer_size=1, chunks=(1,)),
    Job(
        name="even, dealt, until the first runs out",
        policy=Even(8),
        lengths=LENGTHS[:5],
        exhausted="stop",
        chunks=(1,),
    ),
    Job(
        name="even, dealt, most samples bad",
        policy=Even(8),
        lengths=LENGTHS[:4],
        buffer_size=1,
        bad=frozenset({0, 1, 2}),
    ),
    Job(name="even and packed, dealt", policy=Even(8, packed=True), lengths=LENGTHS[:5]),
    Job(
        name="even, windows grow",
        policy=Even(8),
        lengths=(1, *LENGTHS[1:]),
        orders=((0, 1), (2, 3, 4, 5)),
        buffer_size="auto",
        memory=MEMORY,
    ),
    Job(
        name="even, windows shrink to what memory allows",
        policy=Even(12),
        lengths=(12, 11, 12, 11, 12),
        orders=((0, 1, 2, 3, 4), (4, 3)),
        sized=False,
        buffer_size="auto",
        memory=MEMORY,
        chunks=(9,),
    ),
    Job(
        name="even, dealt, windows of what memory allows",
        policy=Even(8),
        lengths=(5, 3, 5, 3, 5),
        buffer_size=4,
        memory=MEMORY // 2,
        bad=frozenset({1}),
        chunks=(1,),
    ),
    Job(
        name="fixed windows of what memory allows",
        policy=TokenBudget(8),
        lengths=LENGTHS,
        orders=((0, 1, 2, 3), (4, 5)),
        buffer_size=4,
        memory=MEMORY // 2,
    ),
    Job(name="three ranks", policy=Even(8), lengths=LENGTHS, ranks=3, chunks=(1,)),
    Job(
        name="three ranks, own samplers",
        policy=ONE_STEP,
        lengths=LENGTHS[:5],
        ranks=3,
        orders=((0, 1), (2,), (3, 4)),
        chunks=(9,),
    ),
    Job(
        name="three ranks, one without samples",
        policy=TokenBudget(8),
        lengths=LENGTHS[:3],
        ranks=3,
        orders=((), (0, 1), (2,)),
        chunks=(9,),
    ),
]
SMALL = {job.name: job for job in _SMALL}

_LARGE = [
    Job(
        name="large: windows of 4, a step a round",
        policy=ONE_STEP,
        lengths=(*LENGTHS, 5, 3, 3),
        orders=((0, 1, 2, 3, 4, 5), (6, 7, 8)),
        buffer_size=4,
    ),
    Job(
        name="large: windows of 3, even, dealt",
        policy=Even(8),
        lengths=(*LENGTHS, 5, 3, 7, 1),
        buffer_size=3,
        bad=frozenset({4}),
    ),
    Job(
        name="large: three ranks, shares unknown",
        policy=ONE_STEP,
        lengths=(*LENGTHS, 5),
        ranks=3,
        orders=((0, 1, 2), (3, 4), (5, 6)),
        sized=False,
    ),
    Job(
        name="large: three ranks, updates of 2 steps",
        policy=FixedBatch(1),
        lengths=LENGTHS,
        ranks=3,
        accumulate=2,
    ),
    Job(
        name="large: three ranks, even, dealt",
        policy=Even(8),
        lengths=(*LENGTHS, 5, 3),
        ranks=3,
        buffer_size=1,
    ),
    Job(
        name="large: three ranks, even and packed",
        policy=Even(8, packed=True),
        lengths=(*LENGTHS, 5, 3, 3),
        ranks=3,
        buffer_size=3,
    ),
    Job(
        name="large: three ranks, until the first runs out",
        policy=Even(8),
        lengths=(*LENGTHS, 5),
        ranks=3,
        exhausted="stop",
        bad=frozenset({1, 2}),
        chunks=(1,),
    ),
    Job(
        name="large: three ranks, windows grow",
        policy=Even(8),
        lengths=(1, *LENGTHS[1:]),
        ranks=3,
        orders=((0, 1), (2, 3, 4, 5), (5, 1)),
        buffer_size="auto",
        memory=MEMORY,
    ),
]
LARGE = {job.name: job for job in _LARGE}
