"""The order in which a pipeline runs its micro-batches.

In the steady state of 1F1B a stage waits wherever the cost of consecutive micro-batches changes
faster than the passes around it can cover, and a fall loses more than a rise. While the pipeline
fills and drains stages wait anyway. So the best orders have one peak: costs rise slowly towards it,
and the steep side behind it, hardly longer than the pipeline, lies in the draining; or all of that
mirrored, with the steep side in the filling. The first and the last micro-batch are small, because
the other stages wait for the one in the beginning and for the other in the end.

Which of these orders is best depends on the costs, so candidates are run through the exact
recurrence of `schedule`, all at once: every order where there are few; else orders with one peak
near an end, then some rounds of swapping two micro-batches of the best.

Invariants: every micro-batch is in the outcome once; no order has a larger makespan than the given
one, which stays where nothing is shorter; equal arguments give equal outcomes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.pipeline.schedule import PipelineSchedule

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
