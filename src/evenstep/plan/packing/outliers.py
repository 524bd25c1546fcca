"""Outlier documents, and the queues in which they wait for others of like length (section 4.2).

A document far longer than the rest makes its micro-batch cost more than the others, and no packing
of short documents can make up for that. So outliers wait until there are as many of like length as
micro-batches, and are then planned together, one in each.

There is no queue object. The documents that wait, in order of arrival, are all the state. The queue
of class i is those of them with ``thresholds[i - 1] <= length < thresholds[i]``, the last one
without an upper end; class 0 is everything shorter and does not wait. So a document that could not
be placed is at the head of its queue again, and to resume takes the same documents and no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions

_RATIO_EXPONENT = 0.7
"""With 1, outliers of neighbouring classes could differ as much as any two of one class. That is
the rare extreme within a class, and would be common between classes."""


def length_classes(lengths: Int64Array, thresholds: Sequence[int]) -> Int64Array:
    """[documents] int64 class of each: 0 for a document that does not wait for others."""
    return np.searchsorted(np.array(thresholds, np.int64), lengths, side="right").astype(np.int64)


def queue_heads(
    classes: Int64Array, ages: Int64Array, queues: int
) -> tuple[Int64Array, Int64Array]:
    """What ranks exchange to agree on a class.

    Args:
        classes: [documents] class of each, in order of arrival.
        ages: [documents] steps that each has waited.
        queues: number of classes above 0.

    Returns:
        [queues] documents that wait in each queue, and [queues] the age of its head, -1 if the
        queue is empty.
    """
    waiting = np.bincount(classes, minlength=queues + 1)[1:].astype(np.int64)
    heads = np.full(queues + 1, -1, np.int64)
    # In reverse order, so that the first document of each class is written last and stays.
    heads[classes[::-1]] = ages[::-1]
    return waiting, heads[1:]


def class_to_release(waiting: Int64Array, heads: Int64Array, micro_batches: int) -> int:
    """The class whose outliers are planned in this step: among those with enough outliers on every
    rank the one with the oldest head, and among equally old ones the longest.

    One class at most, as outliers of two would not fit side by side in all micro-batches.

    Args:
        waiting: [queues] or [ranks, queues] documents in each queue.
        heads: age of the head of each queue; of the same shape.

    Returns:
        The class, from 1; 0 if none has enough.
    """
    waiting, heads = np.atleast_2d(waiting), np.atleast_2d(heads)
    ready = (waiting >= micro_batches).all(axis=0)
    if not ready.any():
        return 0
    oldest = np.where(ready, heads.max(axis=0), -1)  # [queues]
    return len(oldest) - int(oldest[::-1].argmax())


def most_similar(costs: Int64Array, anchor: int, count: int) -> Int64Array:
    """The documents closest in cost to one of them: those that accompany an outlier which must be
    planned although its queue is short.

    Three of the costs 10, 50, 52, 57, 90 with the anchor 50 are 50, 52, 57: they differ
    by 7, the other run around the anchor, 10, 50, 52, by 42.

    Args:
        costs: [documents] cost of each.
        anchor: position of the one.

    Returns:
        [at most count] positions, the anchor among them: the run of documents of neighbouring cost
        that differ least.
    """
    order = np.argsort(costs, kind="stable")
    count = min(count, len(order))
    rank = int(np.flatnonzero(order == anchor)[0])
    # begins: [runs that hold the anchor] where each begins in `order`
    begins = np.arange(max(rank - count + 1, 0), min(rank, len(order) - count) + 1)
    spread = costs[order[begins + count - 1]] - costs[order[begins]]
    begin = int(begins[spread.argmin()])
    return order[begin : begin + count]


def max_cost_ratio(outlier_class: int, options: PackingOptions) -> float:
    """The most that one outlier may cost over another to be planned with it, whatever the other's
    class: somewhat less than the ratio of the ends of the class.

    Args:
        outlier_class: that of one of them, from 1. The last class is taken to end with the context.
    """
    low = options.thresholds[outlier_class - 1]
    ends = (*options.thresholds, max(options.context, low))
    costs = options.cost.of_documents(np.array([low, ends[outlier_class]], np.int64))
    return float((costs[1] / costs[0]) ** _RATIO_EXPONENT)


def auto_thresholds(
    lengths: Int64Array, *, context: int, queues: int, cost: DocumentCost | None = None
) -> tuple[int, ...]:
    """Computes thresholds that suit documents of these lengths. The paper gives no rule for them.

    The first is the length at which a document alone costs as much as an average micro-batch
    without outliers: shorter documents can be balanced, longer ones cannot. As that average depends
    on what counts as an outlier, it is the largest length that solves
    ``cost(L1) = context * (cost of documents below L1) / (tokens of all documents)``; half the
    context if none does, because most of the cost is in long documents. The others divide the
    *cost* between there and a document of `context` tokens in equal ratios.

    Args:
        lengths: [documents] int64; a sample of the documents to come, some thousands.
        context: tokens that a micro-batch holds on average.
        queues: number of thresholds, at least 1.

    Returns:
        At most `queues` ascending lengths. None where no document is an outlier, or all are.

    Raises:
        ConfigurationError: no lengths.
    """
    check_at_least(1, queues=queues, context=context)
    if not len(lengths):
        raise ConfigurationError("thresholds need the lengths of some documents, and got none")
    cost = cost or DocumentCost()
    first = _first_threshold(np.sort(lengths), context, cost)
    if not int(lengths.min()) < first <= int(lengths.max()):
        return ()
    low, top = float(cost.of_document(first)), float(cost.of_document(context))
    if low >= top:
        return (first,)
    ratios = (top / low) ** (np.arange(queues) / queues)
    found = [first, *(cost.longest_within(low * ratio) for ratio in ratios[1:].tolist())]
    return tuple(sorted(set(found)))


def _first_threshold(ascending: Int64Array, context: int, cost: DocumentCost) -> int:
    """The length from which on documents are outliers, from sorted lengths."""
    costs = cost.of_documents(ascending).astype(np.float64)
    # below: [documents + 1] cost of a micro-batch made of the shortest documents alone
    below = np.concatenate([[0.0], costs.cumsum()]) * (context / float(ascending.sum()))
    # The documents below the threshold only become fewer from one pass to the next, so this ends,
    # and at the largest solution.
    count = len(ascending)
    while True:
        first = cost.longest_within(below[count]) + 1
        shorter = int(np.searchsorted(ascending, first, side="left"))
        if shorter >= count:
            break
        count = shorter
    return first if count else max(context // 2, 1)
