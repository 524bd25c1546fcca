"""Ways to balance, by name, and the cost of each sample.

`greedy` puts each item, the costliest first, into the least loaded bin that has room (OVERLORD's
GreedyBinPack); `karmarkar_karp` merges the partitions that are least even. Bins are buckets or
micro-batches.

The cost of each sample is given by a function of lengths or a `Cost` of `evenstep.cost`. That of a
micro-batch is the sum over its samples, as in the paper's Algorithm 1; so only a function that is
more than linear in the length distinguishes 10 + 90 tokens from 50 + 50.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import ConfigurationError
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import Costs, largest_first, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp

CostFunction = Callable[[Int64Array], npt.ArrayLike] | Cost
"""From [n] positive int64 lengths to [n] finite numbers from 0; or a `Cost`, which is called with
groups of one sample."""


def check_cost(function: object) -> None:
    """Raises `ConfigurationError` if it cannot be called."""
    if not callable(function):
        raise ConfigurationError(
            f"cost={function!r} must be a function of lengths or a Cost such as TransformerCost"
        )


def sample_costs(function: CostFunction | None, lengths: Int64Array) -> Costs:
    """[n] int64 or float64 cost of each sample; its length if there is no function.

    Raises:
        ConfigurationError: the function did not return a cost for each sample.
    """
    if function is None:
        return lengths
    if not len(lengths):
        return np.empty(0, np.float64)
    given: Any
    if _takes_groups(function):
        shapes = GroupShapes.measure(lengths, np.arange(len(lengths) + 1))
        given = np.asarray(function(shapes, packed=True))  # type: ignore[call-arg, arg-type]
    else:
        given = np.asarray(function(lengths))  # type: ignore[call-arg, arg-type]
    if given.shape != lengths.shape or given.dtype.kind not in "iuf":
        raise ConfigurationError(
            f"cost function {name_of(function)} gave {given.dtype} of shape {given.shape} for "
            f"{len(lengths)} lengths; it must give a number for each, as an array"
        )
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
    if len(wrong):
        raise ConfigurationError(
            f"cost function {name_of(function)} gave {given[wrong[0]]} for a length of "
            f"{lengths[wrong[0]]:,}; costs must be finite and not negative"
        )
    costs: Costs = given.astype(np.float64 if given.dtype.kind == "f" else np.int64)
    return costs


def name_of(function: object) -> str:
    """The name of a function in plans and messages, without addresses."""
    return getattr(function, "__name__", type(function).__name__)


def _takes_groups(function: CostFunction) -> bool:
    try:
        return "packed" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some NumPy functions have no signature
        return False


METHODS = ("greedy", "karmarkar_karp")


def bins_by(method: str, costs: Costs, bins: int) -> Int64Array:
    """[items] the bin of each by a method that knows of no limits."""
    whole = whole_costs(costs)
    if method == "karmarkar_karp":
        return karmarkar_karp(whole, bins, largest_first(whole))
    found = place(whole, bins)
    assert found is not None  # nothing is limited
    return found
