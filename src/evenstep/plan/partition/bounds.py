"""What the heaviest bin of any partition weighs at least.

Every bound holds for all ways of dividing the items, so their largest does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.partition.items import Items, Weights

__all__ = ["least_load", "lower_bound"]


def lower_bound(
    weights: npt.ArrayLike,
    bins: int,
    *,
    tokens: npt.ArrayLike | None = None,
    cap: int | None = None,
    equal_counts: bool = False,
    together: npt.ArrayLike | None = None,
) -> int | float:
    """What the heaviest of all bins weighs at least, however items are divided.

    The largest of:

    - the mean load, and the heaviest item;
    - for every m the lightest m + 1 of the heaviest m x bins + 1 items, since some bin holds m + 1
      of those: for m = 1, and k bins, the items at ranks k and k + 1;
    - with `equal_counts`, for every r the lesser of two cases: two of the heaviest r items share a
      bin; or they are in r bins, which hold the lightest items beside. Above, too, the lightest
      items fill a bin up;
    - with a cap, the heaviest item beside as many tokens of the lightest items as do not fit into
      the other bins.

    Args:
        weights, bins, tokens, cap, equal_counts, together: as for `partition`.

    Returns:
        int or float, as the weights are.

    Raises:
        ConfigurationError: an argument is wrong; as `partition`, but for what has no place.
    """
    check_at_least(1, bins=bins)
    items = Items.read(weights, tokens, together)
    items.check(cap)
    return least_load(items.weights, bins, equal_counts, items.tokens, cap)


def least_load(
    weights: Weights,
    bins: int,
    equal_counts: bool,
    tokens: Int64Array | None = None,
    cap: int | None = None,
) -> int | float:
    """`lower_bound` of what has been checked."""
    count = len(weights)
    kind: type[int] | type[float] = int if weights.dtype == np.int64 else float
    if not count:
        return kind(0)
    running = np.append(weights.dtype.type(0), np.sort(weights)[::-1].cumsum())
    shared = np.arange((count - 1) // bins + 1)  # m: one bin holds m + 1 of the first m bins + 1
    ends = shared * bins + 1
    loads = running[ends] - running[ends - shared - 1]
    fewest = count // bins if equal_counts else 0  # items in a bin
    loads = loads + (running[-1] - running[count - (fewest - shared - 1).clip(0)])
    total = kind(running[-1])
    bounds = [kind(loads.max()), -(-total // bins) if isinstance(total, int) else total / bins]
    if fewest > 1:
        # The heaviest r items are in r bins, with the lightest of all others; or two are in one.
        r = np.arange(1, bins + 1)
        apart = running[r] + running[-1] - running[count - r * (fewest - 1)]
        apart = -(-apart // r) if kind is int else apart / r
        paired = running[r[1:]] - running[r[1:] - 2] + running[-1] - running[count - fewest + 2]
        bounds.append(kind(np.minimum(apart[1:], paired).max(initial=apart[0])))
    if tokens is not None and cap is not None:
        bounds.append(
            kind(_beside_the_heaviest(weights, tokens, int(tokens.sum()) - (bins - 1) * cap))
        )
    return max(bounds)


def _beside_the_heaviest(weights: Weights, tokens: Int64Array, least: int) -> float:
    """What the heaviest item's bin weighs at least if it has at least so many tokens."""
    heaviest = int(weights.argmax())
    missing = least - int(tokens[heaviest])
    if missing <= 0:
        return 0
    others = np.delete(np.arange(len(weights)), heaviest)
    light = others[(weights[others] / tokens[others]).argsort(kind="stable")]
    # Items may be cut here, so the lightest for their tokens are the least.
    running = np.append(0, tokens[light].cumsum())
    load = np.interp(missing, running, np.append(0.0, weights[light].cumsum(dtype=np.float64)))
    # Lower by more than rounding can have added.
    return (float(weights[heaviest]) + float(load)) * (1 - 1e-12)
