"""Other ways to choose the ranks of documents, to compare dynamic context parallelism with.

Both plan all documents of a step, in any number of micro-batches, as dynamic groups do; only the
choice of ranks differs.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.dynamic_context import ContextPlan, DynamicContext
from evenstep.plan.partition.greedy import place


def fixed_groups(lengths: Int64Array, size: int, options: DynamicContext) -> ContextPlan | None:
    """`size` ranks for every document, as in context parallelism with a fixed degree.

    Documents go to micro-batches of equal cost, the costliest first, within the limit of tokens;
    those of nearly equal cost run at the same time. None if `size` does not divide the ranks, or a
    document does not fit on so few.
    """
    room = size * options.tokens_per_rank
    if options.ranks % size or int(lengths.max()) > room:
        return None
    groups = options.ranks // size
    cost = options.cost.linear * lengths + options.attention(lengths)
    count = -(-int(lengths.sum()) // (room * groups))
    while (found := place(cost, count * groups, tokens=lengths, cap=room)) is None:
        count += 1
    order = np.argsort(-np.bincount(found, cost, count * groups), kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    return _plan([size] * (count * groups), position[found], options)


def powers_of_two_by_length(lengths: Int64Array, options: DynamicContext) -> ContextPlan:
    """Ranks by length alone: the rule of Megatron-LM's schedulers for dynamic context parallelism.

    From the longest to the shortest, a document takes the fewest ranks, a power of two, on which it
    fits. It goes to ranks that are free, or else to the group of that size with least attention per
    rank that has room; or it waits for the next micro-batch. Ranks left without work at the end
    join the smallest groups, which double.
    """
    limit = options.tokens_per_rank
    needed = np.maximum(-(-lengths // limit), 1)
    sizes = np.minimum(1 << np.ceil(np.log2(needed)).astype(np.int64), options.ranks)
    waiting = np.argsort(-lengths, kind="stable").tolist()
    of_document = list(zip(lengths.tolist(), sizes.tolist()))
    group_of = np.empty(len(lengths), np.int64)
    all_sizes: list[int] = []
    while waiting:
        base, free = len(all_sizes), options.ranks
        held: list[int] = []
        open_groups: dict[int, list[tuple[float, int]]] = {}
        left = []
        for document in waiting:
            tokens, size = of_document[document]
            work = tokens * tokens / size
            heap = open_groups.setdefault(size, [])
            if free >= size:
                free -= size
                group, load = base + len(held), 0.0
                all_sizes.append(size)
                held.append(0)
            else:
                full = []
                while heap and held[heap[0][1] - base] + tokens > size * limit:
                    full.append(heappop(heap))
                load, group = heappop(heap) if heap else (0.0, -1)
                for each in full:
                    heappush(heap, each)
                if group < 0:
                    left.append(document)
                    continue
            held[group - base] += tokens
            heappush(heap, (load + work, group))
            group_of[document] = group
        while free:
            at = min(range(base, len(all_sizes)), key=all_sizes.__getitem__)
            more = min(all_sizes[at], free)
            all_sizes[at] += more
            free -= more
        waiting = left
    return _plan(all_sizes, group_of, options)


def _plan(sizes: list[int], group_of: Int64Array, options: DynamicContext) -> ContextPlan:
    """The plan of groups that fill one micro-batch after the other."""
    size = np.array(sizes, np.int64)
    begins = prefix_sums(size)[:-1]
    return ContextPlan(
        ranks=options.ranks,
        micro_batches=int(size.sum()) // options.ranks,
        micro_batch=begins // options.ranks,
        first=begins % options.ranks,
        size=size,
        documents=group_of.argsort(kind="stable"),
        offsets=prefix_sums(np.bincount(group_of, minlength=len(size))),
    )
