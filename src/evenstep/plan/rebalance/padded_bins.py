"""Sequences to micro-batches whose rows are padded to the longest: sequences of like length meet.

Sequences are sorted by length and cut into runs. A run costs as much as its longest sequence times
its number of sequences, so the longest run that stays below a limit is found at once. The smallest
limit for which there are enough micro-batches is found by bisection.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes

_BISECTIONS = 24


def padded_bins(lengths: Int64Array, cost: Cost, bins: int, max_tokens: int) -> Int64Array | None:
    """Places sequences in bins.

    Args:
        lengths: [sequences] tokens of each, none above `max_tokens`.
        max_tokens: tokens of a bin with its padding, at most.

    Returns:
        [sequences] the bin of each; None where they do not fit.
    """
    order = (-lengths).argsort(kind="stable")
    descending = lengths[order]
    one, two = (
        cost(GroupShapes.of_equals(samples, descending), packed=False) for samples in (1, 2)
    )
    row, fixed = two - one, 2 * one - two  # a group costs its rows, and something by itself
    room = max_tokens // descending
    ends = _cut(row, fixed, room, np.inf, bins)
    if ends is None:
        return None
    low, high = 0.0, float((fixed + row * room).max())
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        tried = _cut(row, fixed, room, middle, bins)
        if tried is None:
            low = middle
        else:
            high, ends = middle, tried
    sizes = np.diff(ends, prepend=0).tolist()
    costs = [float(fixed[e - n] + row[e - n] * n) for e, n in zip(ends, sizes)]
    runs = sorted(zip(costs, ends, sizes), reverse=True)
    bin_of = np.empty(len(lengths), np.int64)
    # Fewer runs than bins: the costliest are halved, as long as one has two sequences.
    spare = bins - len(runs)
    number = 0
    for _, end, size in runs:
        half = size // 2 if spare > 0 else 0
        spare -= half > 0
        bin_of[order[end - size : end - half]] = number
        number += 1
        if half:
            bin_of[order[end - half : end]] = number
            number += 1
    return bin_of


def _cut(
    row: Float64Array, fixed: Float64Array, room: Int64Array, limit: float, bins: int
) -> list[int] | None:
    """Where runs of at most `limit` end; a sequence that costs more is alone. None where there are
    more than `bins` of them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.where(row > 0, (limit - fixed) / row, np.inf)
    sizes = np.minimum(room, within.clip(1, len(row))).astype(np.int64).tolist()
    ends: list[int] = []
    start, count = 0, len(sizes)
    while start < count:
        if len(ends) == bins:
            return None
        start = min(start + sizes[start], count)
        ends.append(start)
    return ends
