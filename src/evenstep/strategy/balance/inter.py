"""Micro-batches to buckets: the inter-micro-batch level (OVERLORD's Algorithm 1,
lines 7 to 15).

Invariant: every bucket gets the same number of micro-batches.

Algorithm 1 deals micro-batches, costliest first, to the buckets in turn, so that the first bucket
gets the costlier one each time; that is the method `round_robin`. The others are more even:
`greedy` gives each to the least loaded bucket that still lacks one, `zigzag` turns round at both
ends, and `karmarkar_karp` is its balanced form, in which each bucket gets one micro-batch of every
part that is merged. There no bucket can have two of the cheapest part besides a very costly one, so
where `greedy` leaves less to the most loaded bucket, its result is taken.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import Costs, largest_first, sums, whole_costs
from evenstep.strategy.balance.methods import Method, bins_by
from evenstep.strategy.sample_costs import name_of


def deal(method: Method, costs: Costs, buckets: int) -> Int64Array:
    """Deals micro-batches to buckets.

    Args:
        method: see `evenstep.strategy.balance.methods`.
        costs: [micro_batches] of each; a multiple of `buckets` of them.
        buckets: number of buckets.

    Returns:
        [micro_batches] the bucket of each.

    Raises:
        ConfigurationError: a user's method gave no buckets, or not equally many to each.
    """
    if method in ("greedy", "karmarkar_karp"):
        whole = whole_costs(costs)
        bucket_of = place(whole, buckets, equal_counts=True)
        assert bucket_of is not None  # tokens are not limited
        if method == "karmarkar_karp":
            both = _karmarkar_karp(whole, buckets), bucket_of
            bucket_of = min(both, key=lambda each: sums(whole, each, buckets).max())
        return bucket_of
    bucket_of = bins_by(method, costs, buckets)
    counts = np.bincount(bucket_of, minlength=buckets)
    if counts.min() != counts.max():
        raise ConfigurationError(
            f"method {name_of(method)} gave from {counts.min()} to {counts.max()} micro-batches to "
            "a bucket; it must give equally many to each, as every rank trains on as many"
        )
    return bucket_of


def _karmarkar_karp(costs: Int64Array, buckets: int) -> Int64Array:
    """Karmarkar-Karp with equal counts: one micro-batch for each bucket makes a part, and the two
    parts with the largest spread are merged, the most loaded bucket of one with the least loaded of
    the other, until one part is left. With costs 9, 6, 5, 4 and two buckets, [9, 6] and [5, 4]
    become [9 + 4, 6 + 5]."""
    order = largest_first(costs)
    # [parts, buckets] loads, largest first, and [parts, buckets, merged] micro-batches.
    loads = list(costs[order].reshape(-1, buckets))
    members = list(order.reshape(-1, buckets, 1))
    while len(loads) > 1:
        spreads = np.array([load[0] - load[-1] for load in loads])
        first, second = sorted((-spreads).argsort(kind="stable")[:2].tolist())
        merged = loads[first] + loads[second][::-1]
        joined = np.concatenate([members[first], members[second][::-1]], axis=1)
        by_load = (-merged).argsort(kind="stable")
        loads[first], members[first] = merged[by_load], joined[by_load]
        del loads[second], members[second]
    bucket_of = np.empty(len(costs), np.int64)
    bucket_of[members[0]] = np.arange(buckets)[:, None]
    return bucket_of
