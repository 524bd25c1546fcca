"""What holds for every plan: how many micro-batches it needs, and how even it can be."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.partition.items import Costs


def fewest_micro_batches(
    lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, multiple_of: int = 1
) -> int:
    """Micro-batches of a rank, below which sequences cannot fit. Padded ones fit in so many.

    Args:
        lengths: [sequences] tokens of each, none above `max_tokens`.
    """
    if packed:
        halves = int(np.count_nonzero(2 * lengths > max_tokens))  # no two of them share one
        needed = max(-(-int(lengths.sum()) // max_tokens), halves)
    else:
        # The longest sequence decides how many a micro-batch holds: the next ones in length.
        room = (max_tokens // np.sort(lengths)[::-1]).tolist()
        needed = start = 0
        while start < len(room):
            start += room[start]
            needed += 1
    return -(-needed // (ranks * multiple_of)) * multiple_of


def least_imbalance(costs: Costs, lengths: Int64Array, *, ranks: int, max_tokens: int) -> float:
    """The `Rebalancing.imbalance` that packed micro-batches have at least, however many there are.

    Of sequences that are longer than half of `max_tokens`, no two share a micro-batch. So while one
    rank trains on the costliest, another one of the costliest ``ranks + 1`` waits for its turn, and
    so on: that many micro-batches take at least as long as these. Meanwhile all ranks together
    do no more than hold the sequences that cost most for their tokens; the rest is divided evenly.

    Args:
        costs: [sequences] cost of each.
        lengths: [sequences] tokens of each, none above `max_tokens`.
    """
    total = float(costs.sum())
    if not total:
        return 1.0
    costs = costs.astype(np.float64)
    long = np.sort(costs[2 * lengths > max_tokens])[::-1]
    taken = long[::ranks].cumsum()  # [micro-batches] time of this one and those before it
    dense = (-costs / lengths).argsort(kind="stable")
    room = np.arange(1, len(taken) + 1) * (ranks * max_tokens)
    # A sequence may be cut here, which only lowers the bound.
    held = np.interp(room, prefix_sums(lengths[dense]), prefix_sums(costs[dense]))
    done = np.minimum(held, ranks * taken)
    return float((ranks * taken + total - done).max(initial=total)) / total
