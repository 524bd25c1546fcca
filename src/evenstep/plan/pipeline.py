"""Micro-batches on a pipeline: how long a step takes, and the order in which it is shortest.

`PipelineSchedule` is what a schedule makes every stage do, and when each pass ends.

`order_micro_batches` finds an order. In the steady state of 1F1B a stage waits wherever the cost of
consecutive micro-batches changes faster than the passes around it can cover, and a fall loses more
than a rise. While the pipeline fills and drains stages wait anyway. So the best orders have one
peak: costs rise slowly towards it, and the steep side behind it, hardly longer than the pipeline,
lies in the draining; or all of that mirrored, with the steep side in the filling. The first and the
last micro-batch are small, because the other stages wait for the one in the beginning and for the
other in the end.

Which of these orders is best depends on the costs, so candidates are run through the exact
recurrence of the schedule, all at once: every order where there are few; else orders with one peak
near an end, then some rounds of swapping two micro-batches of the best.

Invariants: every micro-batch is in the outcome once; no order has a larger makespan than the given
one, which stays where nothing is shorter; equal arguments give equal outcomes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least

_Pass = tuple[bool, int, int]
"""Whether the pass is backward, its micro-batch, and the part of the model."""


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """1F1B, plain or interleaved, in the order in which Megatron-LM runs it.

    The model is cut into ``stages * chunks`` parts; stage s holds the parts s, s + stages, ...
    """

    stages: int = 4
    chunks: int = 1
    """Parts of each stage, Megatron's virtual stages. 1 is plain 1F1B, more is interleaved."""
    backward: float = 2.0
    """Time of a backward pass over that of the forward pass."""
    latency: float = 0.0
    """Time from the end of a pass to the arrival of its output on another stage, in the unit of the
    forward times. The sender continues meanwhile."""

    def __post_init__(self) -> None:
        check_at_least(1, stages=self.stages, chunks=self.chunks)
        for name, value in (("backward", self.backward), ("latency", self.latency)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"{name}={value} must be finite and not negative")

    def makespans(
        self, forward: npt.ArrayLike, backward: npt.ArrayLike | None = None
    ) -> Float64Array:
        """[sets] time of a step, by several sets of times at once.

        Args:
            forward: [micro-batches, sets] time of each forward pass on a stage, shared evenly by
                its chunks. At least one micro-batch.
            backward: the same of backward passes; None goes by the ratio of the schedule.

        Raises:
            ConfigurationError: a time is negative or not finite, or the schedule does not run this
                number of micro-batches.
        """
        ahead = np.asarray(forward, np.float64) / self.chunks
        back = ahead * self.backward
        if backward is not None:
            back = np.asarray(backward, np.float64) / self.chunks
        both = np.concatenate([ahead, back])
        if not (np.isfinite(both).all() and both.min(initial=0) >= 0):
            raise ConfigurationError(
                "times of passes must be finite and not negative, and they lie between "
                f"{both.min()} and {both.max()}"
            )
        check_at_least(1, micro_batches=len(ahead))
        if self.chunks > 1 and len(ahead) % self.stages:
            raise ConfigurationError(
                f"micro_batches={len(ahead)} do not suit an interleaved schedule, which takes as "
                f"many as there are stages through a chunk at a time; use a multiple of "
                f"{self.stages}, or chunks=1"
            )
        graph = _graph(self.stages, self.chunks, len(ahead))
        times = both.take(graph.micro_batch, axis=0)  # [passes, sets]
        ends = np.zeros((len(times) + 1, times.shape[1]))
        lags = (graph.crosses * self.latency)[:, None]
        for here, waits in graph.levels:
            free, ready = ends.take(waits, axis=0)  # [passes of the level, sets] each
            if self.latency:
                ready += lags[here]
            np.maximum(free, ready, out=free)
            np.add(free, times[here], out=ends[here])
        last: Float64Array = ends.max(axis=0)
        return last


@dataclass(frozen=True, kw_only=True, eq=False)
class _PassGraph:
    """Every pass of a step and what it waits for. All arrays are [passes].

    Numbers run up level by level: the passes of a level wait only for those of lower levels.
    Number `passes`, one more than the last, stands for no pass, which ends at time 0.
    """

    micro_batch: Int64Array
    """The micro-batch of a forward pass; of a backward pass, that plus their number."""
    crosses: Float64Array
    """1 where the output that it needs comes from another stage, else 0."""
    levels: tuple[tuple[slice, Int64Array], ...]
    """Numbers of the passes of each level; and [2, passes of the level] numbers of the pass before
    each on its stage, and of the one whose output it needs."""


def _stage_order(stage: int, stages: int, chunks: int, micro_batches: int) -> Iterator[_Pass]:
    """The passes of a stage, in the order in which it runs them."""
    # A stage turns to the next chunk after `run` micro-batches, and to the next round of them after
    # the last chunk. Backward it goes through the chunks from the last to the first.
    run = stages
    turns = [
        (micro_batch, chunk)
        for first in range(0, micro_batches, run)
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + run, micro_batches))
    ]
    ahead = stages - stage - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * run
    ahead = min(ahead, len(turns))
    for turn in range(len(turns) + ahead):
        if turn < len(turns):
            micro_batch, chunk = turns[turn]
            yield False, micro_batch, chunk * stages + stage
        if turn >= ahead:
            micro_batch, chunk = turns[turn - ahead]
            yield True, micro_batch, (chunks - 1 - chunk) * stages + stage


@lru_cache(maxsize=64)
def _graph(stages: int, chunks: int, micro_batches: int) -> _PassGraph:
    """Numbers passes level by level: in each, the next pass of every stage that is ready."""
    queues = [deque(_stage_order(s, stages, chunks, micro_batches)) for s in range(stages)]
    total = sum(map(len, queues))
    latest = [total] * stages
    numbers: dict[_Pass, int] = {}
    waits, crosses, levels = [], [], []
    while len(numbers) < total:
        begin = len(numbers)
        for stage, queue in enumerate(queues):
            needed = _needed(queue[0], stages * chunks) if queue else None
            # What was numbered in this level has not ended yet.
            if queue and (needed is None or numbers.get(needed, begin) < begin):
                waits.append((latest[stage], total if needed is None else numbers[needed]))
                crosses.append(float(needed is not None and needed[2] % stages != stage))
                numbers[queue.popleft()] = latest[stage] = len(numbers)
        levels.append(slice(begin, len(numbers)))
    both = np.array(waits, np.int64).T
    return _PassGraph(
        micro_batch=np.array([row[0] * micro_batches + row[1] for row in numbers], np.int64),
        crosses=np.array(crosses),
        levels=tuple((here, both[:, here].copy()) for here in levels),
    )


def _needed(row: _Pass, parts: int) -> _Pass | None:
    """The pass whose output a pass needs; None for a first forward pass."""
    backward, micro_batch, part = row
    if backward:
        return (True, micro_batch, part + 1) if part < parts - 1 else (False, micro_batch, part)
    return (False, micro_batch, part - 1) if part else None


_ALL_ORDERS = 6
"""Micro-batches up to which every order is tried: 720 of them."""
_ALL_SWAPS = 16
"""Micro-batches up to which every swap is tried."""
_ROUNDS = 2
"""Rounds of swaps. More of them, until nothing improves, gain less than 0.2 %."""
_NEXT_TO_PEAK = 4
"""Micro-batches next to the largest of which every subset is tried for the steep side."""
_SHORTER = 1 - 1e-12
"""What counts as shorter, so that rounding alone moves nothing."""


def order_micro_batches(costs: npt.ArrayLike, schedule: PipelineSchedule) -> Int64Array:
    """The order with the smallest makespan found; of up to six micro-batches, the smallest of all.

    Args:
        costs: [micro-batches] cost of each on one stage, as a forward time in any unit. The
            schedule's latency is in the same unit.
        schedule: what the order is for.

    Returns:
        [micro-batches] int64: which micro-batch comes in each place.

    Raises:
        ConfigurationError: a cost is negative or not finite, or the schedule cannot run that many
            micro-batches.
    """
    forward = np.asarray(costs, np.float64)
    count = len(forward)
    given = np.arange(count)
    if count <= _ALL_ORDERS:
        return _shortest(given, _all_orders(count), forward, schedule)[0]
    by_cost = np.argsort(forward, kind="stable")
    candidates = np.concatenate([given[None], by_cost[_one_peak(count)]])
    best, makespan = _shortest(given, candidates, forward, schedule)
    for _ in range(_ROUNDS):
        before = makespan
        best, makespan = _shortest(best, best[_swaps(count)], forward, schedule)
        if makespan == before:
            break
    return best


def _shortest(
    given: Int64Array, orders: Int64Array, forward: Float64Array, schedule: PipelineSchedule
) -> tuple[Int64Array, float]:
    """The order with the smallest makespan, and the makespan; the given one, which is the first of
    `orders`, unless another is shorter."""
    makespans = schedule.makespans(forward[orders.T])
    best = int(makespans.argmin())
    if makespans[best] < makespans[0] * _SHORTER:
        return orders[best], float(makespans[best])
    return given, float(makespans[0])


@lru_cache(maxsize=_ALL_ORDERS)
def _all_orders(count: int) -> Int64Array:
    """[orders, micro-batches] every order, the given one first."""
    return np.array(list(permutations(range(count))), np.int64)


@lru_cache(maxsize=64)
def _one_peak(count: int) -> Int64Array:
    """[orders, micro-batches] which of the micro-batches, sorted by cost, comes in each place.

    Five of them, with the second largest on the steep side: 1 2 4 3 0, and mirrored 0 3 4 2 1.
    """
    # Steep sides, as ranks from the largest on: 1 is the second largest.
    steep: set[tuple[int, ...]] = set()
    near = range(1, min(_NEXT_TO_PEAK, count - 2) + 1)
    for mask in range(1 << len(near)):
        steep.add(tuple(rank for place, rank in enumerate(near) if mask >> place & 1))
    for stride in (2, 3):
        for first in range(1, stride + 1):
            side = tuple(range(first, count - 1, stride))
            steep.update(side[:length] for length in range(1, len(side) + 1))
    orders = []
    for side in sorted(steep):
        slow = [rank for rank in reversed(range(1, count - 1)) if rank not in side]
        falling = [count - 1 - rank for rank in (*slow, 0, *side)]
        orders.append([*falling, 0])
        orders.append([0, *reversed(falling)])
    return np.array(orders, np.int64)


@lru_cache(maxsize=64)
def _swaps(count: int) -> Int64Array:
    """[orders, micro-batches] the order as it is, then with two places swapped: any two of few, of
    many those whose distance is a Fibonacci number."""
    distances = list(range(1, count))
    if count > _ALL_SWAPS:
        distances = [1, 2]
        while distances[-1] + distances[-2] < count:
            distances.append(distances[-1] + distances[-2])
    pairs = [(place, place + apart) for apart in distances for place in range(count - apart)]
    orders = np.tile(np.arange(count), (len(pairs) + 1, 1))
    rows, (left, right) = np.arange(1, len(orders)), np.array(pairs).T
    orders[rows, left], orders[rows, right] = right, left
    return orders
