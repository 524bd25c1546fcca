"""Lower bounds: what the most loaded bin of any partition holds at least.

Every bound holds for all ways of dividing the items, so their largest does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import Costs


def lower_bound(
    costs: Costs,
    bins: int,
    *,
    equal_counts: bool = False,
    tokens: Int64Array | None = None,
    cap: int | None = None,
) -> int | float:
    """The load that the most loaded bin has at least, however items are divided.

    The largest of:

    - the mean load, and the largest cost;
    - for every m the cheapest m + 1 of the costliest m x bins + 1 items, since some bin holds m + 1
      of those;
    - with `equal_counts`, for every r the lesser of two cases: two of the costliest r items share a
      bin; or they are in r bins, which hold the cheapest items besides. Above, too, the cheapest
      items fill a bin up;
    - with a cap, the costliest item and as many tokens of the cheapest items as do not fit into the
      other bins.

    For the costs 9, 8, 7, 6, 5 in two bins: the mean is 18 and the largest cost 9; 9, 8, 7 are in
    two bins, so two of them share one, with at least 8 + 7 = 15; three of all five share one, with
    at least 7 + 6 + 5 = 18. The bound is 18, and 9 + 8, 7 + 6 + 5 reaches it.

    Args:
        costs, bins, equal_counts, tokens, cap: as for `partition`, checked.

    Returns:
        int or float, as the costs are.
    """
    kind: type[int] | type[float] = int if costs.dtype == np.int64 else float
    if not len(costs):
        return kind(0)
    # [items + 1] running[n] is the sum of the costliest n items.
    running = np.append(costs.dtype.type(0), np.sort(costs)[::-1].cumsum())
    total = kind(running[-1])
    fewest = len(costs) // bins if equal_counts else 0  # items in a bin
    bounds = [
        -(-total // bins) if isinstance(total, int) else total / bins,
        kind(_shared_bin(running, bins, fewest)),
    ]
    if fewest > 1:
        bounds.append(kind(_costliest_apart(running, bins, fewest)))
    if tokens is not None and cap is not None:
        overflow = int(tokens.sum()) - (bins - 1) * cap
        bounds.append(kind(_bin_of_the_costliest(costs, tokens, overflow)))
    return max(bounds)


def _shared_bin(running: Any, bins: int, fewest: int) -> Any:
    """For every m, the bin that holds m + 1 of the costliest m x bins + 1 items: their cheapest
    m + 1, filled up to `fewest` items with the cheapest of all. For m = 0, the costliest item."""
    count = len(running) - 1
    m = np.arange((count - 1) // bins + 1)
    first = m * bins + 1
    shared = running[first] - running[first - (m + 1)]
    cheapest = running[-1] - running[count - (fewest - (m + 1)).clip(0)]
    return (shared + cheapest).max()


def _costliest_apart(running: Any, bins: int, fewest: int) -> Any:
    """For every r, the costliest r items: in r bins, filled up to `fewest` items each with the
    cheapest of all; or two of them in one bin, filled up likewise. The lesser of both."""
    count = len(running) - 1
    r = np.arange(1, bins + 1)
    apart = running[r] + running[-1] - running[count - r * (fewest - 1)]
    apart = -(-apart // r) if apart.dtype == np.int64 else apart / r  # the mean of r bins
    paired = running[r[1:]] - running[r[1:] - 2] + running[-1] - running[count - (fewest - 2)]
    return np.minimum(apart[1:], paired).max(initial=apart[0])


def _bin_of_the_costliest(costs: Costs, tokens: Int64Array, overflow: int) -> float:
    """The costliest item's bin must also hold every token that the other bins cannot; they are
    taken from the items that cost least for their tokens.

    Args:
        overflow: tokens that full other bins leave to this one.
    """
    costliest = int(costs.argmax())
    missing = overflow - int(tokens[costliest])
    if missing <= 0:
        return 0
    others = np.delete(np.arange(len(costs)), costliest)
    cheap = others[(costs[others] / tokens[others]).argsort(kind="stable")]
    # Items may be cut here, which only lowers the bound.
    held = np.append(0, tokens[cheap].cumsum())
    load = np.interp(missing, held, np.append(0.0, costs[cheap].cumsum(dtype=np.float64)))
    # Lower by more than rounding can have added.
    return (float(costs[costliest]) + float(load)) * (1 - 1e-12)
