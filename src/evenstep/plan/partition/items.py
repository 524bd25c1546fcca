"""Costs and tokens of items, checked; costs as whole numbers.

Invariant: costs are finite and not negative, and tokens positive; the sum of the whole costs stays
below 2**62, so that sums of them are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least

Costs = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_LARGEST_CAP = (1 << 31) - 1
_LARGEST_SUM = 1 << 62
_SCALED_BITS = 50  # the sum of scaled costs is at most 2 to the power of this


def checked_costs(costs: npt.ArrayLike) -> Costs:
    """[items] the costs, as int64 or float64.

    Raises:
        ConfigurationError: a cost is negative or not finite, or their sum is too large.
    """
    read: Costs = _column("costs", costs, None)
    if len(read) and not (np.isfinite(read).all() and read.min() >= 0):
        bad = int(np.flatnonzero(~(np.isfinite(read) & (read >= 0)))[0])
        raise ConfigurationError(f"costs[{bad}]={read[bad]} must be finite and not negative")
    with np.errstate(over="ignore"):
        total = float(read.sum(dtype=np.float64))
    if total >= (_LARGEST_SUM if read.dtype == np.int64 else np.inf):
        limit = "2**62, or give them as float64" if read.dtype == np.int64 else "1.8e308"
        raise ConfigurationError(
            f"costs sum to {total:.3g}; divide them by a common factor to stay below {limit}"
        )
    return read


def check_tokens(tokens: npt.ArrayLike, count: int | None, cap: int | None) -> Int64Array:
    """[items] the tokens, as int64.

    Raises:
        ConfigurationError: there are not `count` of them, one is not positive, the cap is wrong, or
            an item exceeds it.
    """
    sizes: Int64Array = _column("tokens", tokens, count, whole=True)
    if len(sizes) and sizes.min() < 1:
        bad = int(sizes.argmin())
        raise ConfigurationError(f"tokens[{bad}]={sizes[bad]} must be at least 1")
    if cap is None:
        return sizes
    check_at_least(1, cap=cap)
    if cap > _LARGEST_CAP:
        raise ConfigurationError(f"cap={cap:,} must be at most {_LARGEST_CAP:,} tokens")
    if len(sizes) and sizes.max() > cap:
        largest = int(sizes.argmax())
        raise ConfigurationError(
            f"item {largest} has {sizes[largest]:,} tokens, over cap={cap:,}; truncate or split in "
            "the dataset, or raise cap"
        )
    return sizes


def sums(values: Costs, bin_of: Int64Array, bins: int) -> Any:
    """[bins] sum of the values in each bin, of their type."""
    result = np.zeros(bins, values.dtype)
    np.add.at(result, bin_of, values)
    return result


def largest_first(values: Costs) -> Int64Array:
    """[items] positions sorted by value, largest first, ties by position."""
    if values.dtype != np.int64:
        return (-values).argsort(kind="stable")
    order = np.argsort(-values)
    descending = values[order]
    # Fast sorting leaves equal values in any order: number them alike, and sort by position.
    keys = np.append(0, (descending[1:] != descending[:-1]).cumsum()) if len(values) else order
    keys = (keys << 32) + order
    keys.sort()
    return keys & 0xFFFFFFFF


def whole_costs(costs: npt.ArrayLike) -> Int64Array:
    """[items] the costs, checked, as whole numbers: as they are, or scaled where they are of type
    float."""
    read = checked_costs(costs)
    return whole_by_group(read, np.array([len(read)]))


def whole_by_group(costs: Costs, ends: Int64Array) -> Int64Array:
    """[items] `whole_costs` of each group by itself.

    Args:
        costs: [items] group after group, checked.
        ends: [groups] position at which each ends.
    """
    if costs.dtype == np.int64:
        return costs  # type: ignore[return-value]
    totals = [group.sum() for group in np.split(costs, ends[:-1])]
    # By a power of two, which rounds nothing but what is below one.
    powers = _SCALED_BITS - np.frexp(totals)[1]
    scaled = np.ldexp(costs, powers.repeat(np.diff(ends, prepend=0)))
    whole: Int64Array = np.rint(scaled).astype(np.int64)
    return whole


def _column(name: str, values: Any, count: int | None, *, whole: bool = False) -> Any:
    array = np.asarray(values)
    if whole and not array.size:
        array = array.astype(np.int64)  # an empty list has type float64
    kinds = "iu" if whole else "iuf"
    if array.ndim != 1 or array.dtype.kind not in kinds:
        what = "integers" if whole else "numbers"
        raise ConfigurationError(
            f"{name} of shape {array.shape} and type {array.dtype} must be [items] {what}"
        )
    if count is not None and len(array) != count:
        raise ConfigurationError(f"{name} has {len(array)} entries for {count} items")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)
