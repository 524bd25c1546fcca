"""Ways to balance, by name, and the contract for those that a user brings.

`greedy` takes items from the heaviest to the lightest, each to the lightest bin that has room (the
paper's GreedyBinPack); `karmarkar_karp` merges partitions that are least even; `zigzag` goes to and
fro over the bins; `round_robin` starts from the first bin again each time, as lines 11 to 15 of
Algorithm 1 do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.partition import partition
from evenstep.plan.partition.greedy import compiled, heaviest_first, place
from evenstep.plan.partition.items import Items
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.strategy.sample_costs import Costs, name_of

__all__ = [
    "COMPILE_FROM",
    "METHODS",
    "Method",
    "bins_by",
    "check_method",
    "costliest_first",
    "least_loaded",
]

Method = str | Callable[[Costs, int], npt.ArrayLike]
"""A name of `METHODS`; or a function from [items] costs and a number of bins to the [items] bin of
each, from 0."""

METHODS = ("greedy", "karmarkar_karp", "zigzag", "round_robin")

COMPILE_FROM = 1 << 12
"""Samples of a step from which on numba places them, where it is installed, with the same outcome:
a planner plans every step, so it compiles once for thousands of plans."""


def check_method(method: object) -> None:
    """Raises `ConfigurationError` for what is neither a known name nor a function."""
    if not callable(method) and method not in METHODS:
        raise ConfigurationError(
            f"method={method!r} must be one of {', '.join(METHODS)}, or a function of costs and a "
            "number of bins"
        )


def bins_by(method: Method, costs: Costs, bins: int, *, fast: bool = False) -> Int64Array:
    """[items] the bin of each by a method that knows of no limits.

    Args:
        fast: whether numba may do it: compiling pays for itself.

    Raises:
        ConfigurationError: a user's method gave something else than a bin for each item.
    """
    if callable(method):
        return _checked(method, np.asarray(method(costs, bins)), len(costs), bins)
    if method == "greedy":
        found = least_loaded(costs, bins, fast=fast)
        assert found is not None  # nothing is limited
        return found
    if method == "round_robin":
        bin_of = np.empty(len(costs), np.int64)
        bin_of[costliest_first(costs)] = np.arange(len(costs)) % bins
        return bin_of
    if method == "karmarkar_karp":
        whole = Items.read(costs, None, None).whole
        return karmarkar_karp(whole, bins, heaviest_first(whole), fast=fast)
    return partition(costs, bins, method=method, exchange=False).bin_of


def costliest_first(costs: Costs) -> Int64Array:
    """[items] positions by descending costs, ties by position."""
    if costs.dtype == np.int64:
        return heaviest_first(costs)  # type: ignore[arg-type]
    return (-costs).argsort(kind="stable")


def least_loaded(
    costs: Costs,
    bins: int,
    tokens: Int64Array | None = None,
    cap: int | None = None,
    *,
    equal_counts: bool = False,
    fast: bool = False,
) -> Int64Array | None:
    """[items] the bin of each by `greedy`; None where an item found no bin with room.

    Args:
        tokens, cap: limit what a bin holds.
        equal_counts: whether bins hold equally many items, up to one.
        fast: whether numba may do it: compiling pays for itself.
    """
    whole = Items.read(costs, None, None).whole
    order = heaviest_first(whole)
    make = compiled() if fast else None
    if make is None:
        return place(whole, bins, order, tokens=tokens, cap=cap, equal_counts=equal_counts)
    sizes = np.zeros(len(costs), np.int64) if tokens is None or cap is None else tokens[order]
    most, extra = divmod(len(costs), bins) if equal_counts else (len(costs), 0)
    found = make(whole[order], sizes, bins, cap or 0, most, extra)
    if len(found) < len(costs):
        return None
    bin_of = np.empty(len(costs), np.int64)
    bin_of[order] = found
    return bin_of


def _checked(method: object, given: npt.NDArray[np.generic], count: int, bins: int) -> Int64Array:
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise ConfigurationError(
            f"method {name_of(method)} gave {given.dtype} of shape {given.shape}; it must give "
            f"the number of a bin for each of {count} items"
        )
    bin_of = given.astype(np.int64)
    if count and not 0 <= bin_of.min() <= bin_of.max() < bins:
        raise ConfigurationError(
            f"method {name_of(method)} gave bins from {bin_of.min()} to {bin_of.max()}; with "
            f"bins={bins} they must be from 0 to {bins - 1}"
        )
    return bin_of
