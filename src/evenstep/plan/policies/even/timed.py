"""Samples as long as the time they take: what `Even` fills groups with.

A group is full when its time is full, which is that of ``max_tokens`` tokens of short samples. Then
any lengths can meet in a step, as every full group takes as long. If groups were full of tokens,
those of long samples would take longer than any of short ones, and only meet each other.

So each sample counts as many tokens as short samples compute in its time. Under a cost by which
attention takes as long as all else at 24,000 tokens, a sample of 12,000 counts 18,000, and one of
120 counts 120. A row of a padded group takes the time of its longest sample, so counts of samples
are padded as their tokens are. No sample counts less than its tokens: groups that are full of time
fit in memory.

A sample that takes longer than any full group is *dear*. It is a group by itself, with what fits in
memory beside it, and is best met by dear samples of the other ranks.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.cost.vision_language import language_part

_ROUNDING = 1e-9


def counts(cost: Cost, lengths: Int64Array, *, packed: bool) -> Int64Array:
    """[samples] tokens of short samples that take as long as each, at least its own tokens."""
    token = token_cost(cost, packed=packed)
    if token <= 0:
        return lengths  # where samples cost nothing, tokens fill a group
    rows = _row(cost, lengths, packed) / token
    taken = np.floor(rows * (1 + _ROUNDING)).astype(np.int64)
    counted: Int64Array = np.maximum(taken, lengths)
    return counted


def token_cost(cost: Cost, *, packed: bool) -> float:
    """What a token costs without its pairs."""
    one, two = _row(cost, np.array([1, 2], np.int64), packed).tolist()
    return float(2 * one - two / 2)


def _row(cost: Cost, lengths: Int64Array, packed: bool) -> Float64Array:
    """What one more sample of each length adds to a group of such samples."""
    language = language_part(cost)
    one, two = (language(GroupShapes.of_equals(n, lengths), packed=packed) for n in (1, 2))
    return np.asarray(two, np.float64) - np.asarray(one, np.float64)
