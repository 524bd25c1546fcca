"""How many samples fit under the token cap, and at least one sample in every bin."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import Costs


def count_within(tokens: Int64Array, bins: int, cap: int | None) -> int:
    """How many samples, in the order drawn, have no more tokens than all bins hold."""
    if cap is None:
        return len(tokens)
    return int(np.searchsorted(tokens.cumsum(), bins * cap, side="right"))


def fill_empty(bin_of: Int64Array, costs: Costs, bins: int) -> Int64Array:
    """Moves one of the cheapest samples that are not alone in their bin to each empty bin, as long
    as there are any: of costs 5, 2, 1 in the bins 0, 0, 0 of two, the 1 goes to bin 1.

    Args:
        bin_of, costs: [samples].

    Returns:
        [samples] the bin of each.
    """
    counts = np.bincount(bin_of, minlength=bins)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return bin_of
    bin_of = bin_of.copy()
    for row in costs.argsort(kind="stable").tolist():
        if not empty:
            break
        donor = bin_of[row]
        if counts[donor] > 1:
            counts[donor] -= 1
            bin_of[row] = empty.pop(0)
    return bin_of
