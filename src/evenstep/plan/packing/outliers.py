"""Outlier documents, and the queues in which they wait for others of their length.

A document far longer than the rest makes one micro-batch more work than the others, and no packing
of short documents can make up for that. So outliers wait until there are as many of like length as
micro-batches, and then go together, one to each.

There is no queue object. The documents that wait, in order of arrival, are all the state; the queue
of class i is those of them with ``thresholds[i - 1] <= length < thresholds[i]``, the last without
an upper end, and class 0 is everything shorter, which does not wait. So what could not be placed is
at the head of its queue again, and to resume is to have the same documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions

__all__ = [
    "alike",
    "auto_thresholds",
    "class_to_fire",
    "classes",
    "likest",
    "queue_heads",
]


_ALIKE = 0.7
"""Exponent: with 1, outliers of neighbouring classes would go together that are as unlike as any in
one class, which is rare there and would be common."""


def classes(lengths: Int64Array, thresholds: Sequence[int]) -> Int64Array:
    """[documents] int64 class of each: 0 for one that does not wait for others."""
    return np.searchsorted(np.array(thresholds, np.int64), lengths, side="right").astype(np.int64)


def queue_heads(
    classes: Int64Array, ages: Int64Array, queues: int
) -> tuple[Int64Array, Int64Array]:
    """What ranks tell each other to agree on a class.

    Args:
        classes: [documents] class of each, in order of arrival.
        ages: [documents] iterations that each has waited.
        queues: number of classes above 0.

    Returns:
        [queues] documents that wait in each queue, and [queues] the age of its head; -1 where the
        queue is empty.
    """
    waiting = np.bincount(classes, minlength=queues + 1)[1:].astype(np.int64)
    heads = np.full(queues + 1, -1, np.int64)
    # Of the documents of a class the first in order of arrival, written last, stays.
    heads[classes[::-1]] = ages[::-1]
    return waiting, heads[1:]


def class_to_fire(waiting: Int64Array, heads: Int64Array, micro_batches: int) -> int:
    """The class whose outliers go in this iteration: of those with enough of them on every rank,
    the one with the oldest head; of equally old ones the longest.

    One class at most, as two would not fit beside each other in all micro-batches.

    Args:
        waiting: [queues] or [ranks, queues] documents in each queue.
        heads: of the same shape; age of the head of each queue.

    Returns:
        Its number, from 1; 0 where none has enough.
    """
    waiting, heads = np.atleast_2d(waiting), np.atleast_2d(heads)
    ready = (waiting >= micro_batches).all(axis=0)
    if not ready.any():
        return 0
    oldest = np.where(ready, heads.max(axis=0), -1)
    return len(oldest) - int(oldest[::-1].argmax())


def likest(works: Int64Array, anchor: int, count: int) -> Int64Array:
    """The documents that are most like one of them: what goes with an outlier that must go, though
    its queue is short.

    Args:
        works: [documents] work of each.
        anchor: position of the one.

    Returns:
        [at most count] positions, the anchor among them: the run of documents of neighbouring work
        that differ least.
    """
    order = np.argsort(works, kind="stable")
    count = min(count, len(order))
    place = int(np.flatnonzero(order == anchor)[0])
    begins = np.arange(max(place - count + 1, 0), min(place, len(order) - count) + 1)
    spread = works[order[begins + count - 1]] - works[order[begins]]
    begin = int(begins[spread.argmin()])
    return order[begin : begin + count]


def alike(kind: int, options: PackingOptions) -> float:
    """How much more work than the other the larger of two outliers may be, if one is of this class
    and they are to be alike whatever the other's class: most of what it may be within the class.

    Args:
        kind: the class, from 1. The last one ends, for this, with the context.
    """
    low = options.thresholds[kind - 1]
    ends = (*options.thresholds, max(options.context, low))
    works = options.workload.of_documents(np.array([low, ends[kind]], np.int64))
    return float((works[1] / works[0]) ** _ALIKE)


def auto_thresholds(
    lengths: Int64Array, *, context: int, queues: int, workload: DocumentCost | None = None
) -> tuple[int, ...]:
    """Thresholds that suit documents of these lengths. The paper gives no rule for them.

    The first is the length at which a document alone is as much work as a micro-batch is on
    average where no outlier is in it: below, documents can be levelled out; above, they cannot. As
    this depends on what counts as an outlier, it is the largest length that solves the equation
    ``work(L1) = context * (work of documents below L1) / (tokens of all documents)``; half the
    context where none does, because most of the work is in long documents. The others divide the
    *work* between there and that of a document of `context` tokens in equal ratios.

    Args:
        lengths: [documents] int64; a sample of the documents to come, some thousands.
        context: tokens that a micro-batch holds on average.
        queues: how many thresholds are wanted, at least 1.

    Returns:
        At most `queues` ascending lengths. None where no document is an outlier, or all are.

    Raises:
        ConfigurationError: no lengths.
    """
    check_at_least(1, queues=queues, context=context)
    if not len(lengths):
        raise ConfigurationError("thresholds need the lengths of some documents, and got none")
    workload = workload or DocumentCost()
    ascending = np.sort(lengths)
    works = workload.of_documents(ascending).astype(np.float64)
    below = np.concatenate([[0.0], works.cumsum()]) * (context / float(ascending.sum()))
    # What is below the threshold only shrinks from one round to the next, so this ends, and at the
    # largest solution.
    count = len(ascending)
    while True:
        first = workload.longest_within(below[count]) + 1
        inside = int(np.searchsorted(ascending, first, side="left"))
        if inside >= count:
            break
        count = inside
    if count == 0:
        # Most of the work is in long documents, so that the equation has no solution.
        first = max(context // 2, 1)
        count = int(np.searchsorted(ascending, first, side="left"))
    if count == len(ascending) or count == 0:
        return ()
    top = float(workload.of_documents(np.array([context], np.int64))[0])
    low = float(workload.of_documents(np.array([first], np.int64))[0])
    if low >= top:
        return (first,)
    ratios = (top / low) ** (np.arange(queues) / queues)
    found = [first, *(workload.longest_within(low * ratio) for ratio in ratios[1:].tolist())]
    return tuple(sorted(set(found)))
