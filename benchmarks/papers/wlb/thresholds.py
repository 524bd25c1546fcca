"""Thresholds of Algorithm 1's queues of outliers. The paper gives no rule for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.value_checks import check_at_least


def length_classes(lengths: Int64Array, thresholds: Sequence[int]) -> Int64Array:
    """[documents] int64 class of each: 0 for a document that does not wait for others."""
    return np.searchsorted(np.array(thresholds, np.int64), lengths, side="right").astype(np.int64)


def auto_thresholds(
    lengths: Int64Array, *, context: int, queues: int, cost: DocumentCost | None = None
) -> tuple[int, ...]:
    """Computes thresholds that suit documents of these lengths.

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
    found = [first, *(_longest_within(cost, low * ratio) for ratio in ratios[1:].tolist())]
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
        first = _longest_within(cost, below[count]) + 1
        shorter = int(np.searchsorted(ascending, first, side="left"))
        if shorter >= count:
            break
        count = shorter
    return first if count else max(context // 2, 1)


def _longest_within(cost: DocumentCost, most: float) -> int:
    """Tokens of the longest document that costs at most `most`."""
    if not cost.quadratic:
        return int(most // cost.linear)
    half = cost.linear / (2 * cost.quadratic)
    root = int(math.sqrt(half * half + most / cost.quadratic) - half)
    # Rounding may put the square root off by one.
    return max(length for length in (root - 1, root, root + 1) if cost.of_document(length) <= most)
