"""Other ways to divide the sequences of an update, to compare `plan_rebalance` with.

Both give each rank equally many sequences first, and divide those of each rank by themselves.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.groups import Groups
from evenstep.plan.partition.items import largest_first, sums, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.plan.rebalance import Rebalancing


def plain_split(
    lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, cost: Cost
) -> Rebalancing:
    """Sequences in order: the first ones to rank 0, and so on, and a new micro-batch whenever the
    next one does not fit. A rank with fewer micro-batches than others ends with empty ones.

    Args:
        lengths: [sequences] tokens of each, as many as `ranks` divides.
    """
    own = np.arange(len(lengths)).reshape(ranks, -1)
    step = _cut_in_order(lengths, own, max_tokens, packed)
    return measured(np.arange(ranks).repeat(own.shape[1]), step, lengths, ranks, packed, cost)


def differencing_split(
    lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, cost: Cost
) -> Rebalancing:
    """As verl divides a batch, by Karmarkar-Karp twice; with `cost` for its own estimate of the
    work.

    First ranks get equally many sequences of about the same total cost. Then each rank has as many
    micro-batches as its tokens fill, and all have as many as the one with most; its sequences go to
    these so that they cost about the same. Nothing keeps one of them within `max_tokens`.

    Padded micro-batches are runs of a rank's sequences in order of length, within `max_tokens`;
    ranks with fewer halve those of most sequences.

    Args:
        lengths: [sequences] tokens of each, as many as `ranks` divides.
    """
    costs = whole_costs(cost(GroupShapes.of_equals(1, lengths), packed=True))
    own = _equal_counts(costs, ranks)
    rank = np.empty(len(lengths), np.int64)
    rank[own] = np.arange(ranks)[:, None]
    if not packed:
        own = np.take_along_axis(own, (-lengths[own]).argsort(axis=1, kind="stable"), axis=1)
        step = _halved(_cut_in_order(lengths, own, max_tokens, packed), own)
    else:
        count = int((-(-sums(lengths, rank, ranks) // max_tokens)).max())
        falling = np.take_along_axis(own, (-costs[own]).argsort(axis=1, kind="stable"), axis=1)
        ends = np.arange(1, ranks + 1) * own.shape[1]
        step = karmarkar_karp(costs, count, falling.ravel(), ends=ends)
    return measured(rank, step, lengths, ranks, packed, cost)


def measured(
    rank: Int64Array, step: Int64Array, lengths: Int64Array, ranks: int, packed: bool, cost: Cost
) -> Rebalancing:
    """The plan by which each sequence is in micro-batch `step` of `rank`, with its costs."""
    count = int(step.max()) + 1
    label = rank * count + step
    costs = np.zeros(ranks * count)
    costs[np.unique(label)] = cost(Groups.by_label(label).shapes(lengths), packed=packed)
    return Rebalancing(
        ranks=ranks,
        micro_batches=count,
        rank=rank,
        micro_batch=step,
        costs=costs.reshape(ranks, count),
    )


def _cut_in_order(
    lengths: Int64Array, own: Int64Array, max_tokens: int, packed: bool
) -> Int64Array:
    """[sequences] the micro-batch of each.

    Args:
        own: [ranks, sequences of a rank] in the order in which they are taken.
    """
    step = np.empty(own.size, np.int64)
    for members in own:
        number = held = count = longest = 0
        for length, member in zip(lengths[members].tolist(), members.tolist()):
            held, count, longest = held + length, count + 1, max(longest, length)
            if (held if packed else count * longest) > max_tokens:
                number, held, count, longest = number + 1, length, 1, length
            step[member] = number
    return step


def _halved(step: Int64Array, own: Int64Array) -> Int64Array:
    """[sequences] the micro-batch of each, after every rank has as many as the one with most."""
    step = step.copy()
    count = int(step.max()) + 1
    for members in own:
        sizes = np.bincount(step[members])
        for number in range(len(sizes), count):
            largest = int(sizes.argmax())
            moved = members[step[members] == largest][sizes[largest] // 2 :]
            step[moved] = number
            sizes[largest] -= len(moved)
            sizes = np.append(sizes, len(moved))
    return step


def _equal_counts(costs: Int64Array, ranks: int) -> Int64Array:
    """[ranks, sequences of a rank] equally many on each, by differencing: as `karmarkar_karp`, but
    partial partitions begin with a sequence for each rank, those of about the same cost."""
    order = largest_first(costs).reshape(-1, ranks)
    parts = {number: (costs[row], row[:, None]) for number, row in enumerate(order)}
    # Least even first.
    queue = [(int(loads[-1] - loads[0]), number) for number, (loads, _) in parts.items()]
    heapify(queue)
    while len(queue) > 1:
        loads, members = parts.pop(heappop(queue)[1])
        number = heappop(queue)[1]
        other, others = parts.pop(number)
        loads, members = loads + other[::-1], np.hstack([members, others[::-1]])
        falling = largest_first(loads)
        loads, members = loads[falling], members[falling]
        parts[number] = loads, members
        heappush(queue, (int(loads[-1] - loads[0]), number))
    return parts[queue[0][1]][1]
