"""Micro-batches to buckets: the inter-micro-batch level (Algorithm 1, lines 7 to 15).

Invariant: every bucket gets the same number of micro-batches.

Algorithm 1 deals micro-batches, heaviest first, to the buckets in turn, so that the first bucket
gets the heavier one each time; that is the method `round_robin`. The others are more even: `greedy`
gives each to the lightest bucket that still lacks one, `zigzag` turns round at both ends, and
`karmarkar_karp` is its balanced form, in which what is merged has the same number in each bucket.
There no bucket can have two of the lightest part beside a very heavy one, so where `greedy` leaves
less to the heaviest bucket, its dealing is taken.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.partition.greedy import heaviest_first
from evenstep.plan.partition.items import Items, sums
from evenstep.strategy.balance.methods import Method, bins_by, least_loaded
from evenstep.strategy.sample_costs import Costs, name_of

__all__ = ["deal"]


def deal(method: Method, costs: Costs, buckets: int, *, fast: bool = False) -> Int64Array:
    """
    Args:
        method: see `evenstep.strategy.balance.methods`.
        costs: [micro_batches] of each; a multiple of `buckets` of them.
        buckets: to deal them to.
        fast: see `least_loaded`.

    Returns:
        [micro_batches] the bucket of each.

    Raises:
        ConfigurationError: a user's method gave no buckets, or not equally many to each.
    """
    if method in ("greedy", "karmarkar_karp"):
        dealt = least_loaded(costs, buckets, equal_counts=True, fast=fast)
        assert dealt is not None  # tokens are not limited
        if method == "greedy":
            return dealt
        weights = Items.read(costs, None, None).whole
        differenced = _differencing(weights, buckets)
        return min((differenced, dealt), key=lambda each: sums(weights, each, buckets).max())
    bucket_of = bins_by(method, costs, buckets, fast=fast)
    counts = np.bincount(bucket_of, minlength=buckets)
    if counts.min() != counts.max():
        raise ConfigurationError(
            f"method {name_of(method)} gave from {counts.min()} to {counts.max()} micro-batches to "
            "a bucket; it must give equally many to each, as every rank trains on as many"
        )
    return bucket_of


def _differencing(weights: Int64Array, buckets: int) -> Int64Array:
    """Karmarkar-Karp with equal counts: one micro-batch for each bucket makes a part, and the two
    parts with the largest spread are merged, the heaviest bucket of one with the lightest of the
    other, until one part is left."""
    order = heaviest_first(weights)
    # [parts, buckets] loads, heaviest first, and [parts, buckets, merged] micro-batches.
    loads = list(weights[order].reshape(-1, buckets))
    members = list(order.reshape(-1, buckets, 1))
    while len(loads) > 1:
        spreads = np.array([load[0] - load[-1] for load in loads])
        first, second = sorted((-spreads).argsort(kind="stable")[:2].tolist())
        merged = loads[first] + loads[second][::-1]
        joined = np.concatenate([members[first], members[second][::-1]], axis=1)
        by_load = (-merged).argsort(kind="stable")
        loads[first], members[first] = merged[by_load], joined[by_load]
        del loads[second], members[second]
    bucket_of = np.empty(len(weights), np.int64)
    bucket_of[members[0]] = np.arange(buckets)[:, None]
    return bucket_of
