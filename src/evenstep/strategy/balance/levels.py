"""From the samples of a step to an `Assignment`: micro-batches are formed, then dealt to buckets.

Decisions where OVERLORD (section 4.2, Algorithm 1) leaves room:

- There are ``buckets x micro_batches`` micro-batches; the paper's m is that product.
- `intra` forms micro-batches by a method; without it they are consecutive samples, as drawn.
- `inter` deals micro-batches to buckets by a method, and orders those of a bucket from the
  costliest to the cheapest, so that the k-th of all buckets are alike; without it they go to the
  buckets in turn, as formed.
- `both` balances buckets first, by a method over all samples, and then the micro-batches of each;
  see `evenstep.strategy.balance.micro_batches` for why. Where all may have room under the cap, but
  not that way, the levels come one after the other, `intra` and then `inter`.
- The order within a micro-batch that a method formed is from the costliest sample to the cheapest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import Costs, largest_first, sums, whole_costs
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.micro_batches import Bins, by_bucket_first, by_method, in_order

LEVELS = ("inter", "intra", "both")


@dataclass(frozen=True, kw_only=True)
class Balancing:
    """The arguments of `DGraph.balance`."""

    intra: str | None = None
    inter: str | None = None
    together: bool = False
    """Whether both levels, which then have the same method, are balanced as one."""
    micro_batches: int | None = None
    """Micro-batches of each bucket; None takes the job's."""
    max_tokens: int | None = None
    """Tokens of each micro-batch; None takes the job's."""


def assign(costs: Costs, tokens: Int64Array, bins: Bins, balancing: Balancing) -> Assignment:
    """Forms micro-batches and deals them to buckets.

    Args:
        costs: [samples] in the order drawn.
        tokens: [samples] from 1 to the cap.
        balancing: the methods.

    Returns:
        An assignment in which samples that found no room have no bucket.
    """
    bin_of = _bins(costs, tokens, bins, balancing)
    by = costs if balancing.intra else None
    return _ordered(bin_of, by, bins.buckets, bins.micro_batches)


def _in_turn(numbers: Int64Array, buckets: int, micro_batches: int) -> Int64Array:
    """Micro-batches that are dealt to the buckets in turn, numbered bucket after bucket."""
    return (numbers % buckets) * micro_batches + numbers // buckets


def arrival(rows: Int64Array, samples: int, buckets: int, micro_batches: int) -> Assignment:
    """The assignment without balancing: consecutive samples, equally many in each micro-batch, and
    micro-batches to the buckets in turn. What balancing gains is measured against it; it knows of
    no limit.

    Args:
        rows: positions of the samples that are placed, ascending.
        samples: number of samples of the plan.
    """
    bins = np.full(samples, -1, np.int64)
    formed = np.arange(len(rows)) * (buckets * micro_batches) // max(len(rows), 1)
    bins[rows] = _in_turn(formed, buckets, micro_batches)
    return _ordered(bins, None, buckets, micro_batches)


def _bins(costs: Costs, tokens: Int64Array, bins: Bins, balancing: Balancing) -> Int64Array:
    """[samples] the micro-batch of each, numbered bucket after bucket; -1 for none."""
    total, cap = len(bins), bins.cap
    if total == 1 and tokens.sum() <= (cap or np.inf):
        return np.zeros(len(tokens), np.int64)  # there is nothing to decide
    intra, inter = balancing.intra, balancing.inter
    if balancing.together and intra is not None:
        both = by_bucket_first(intra, costs, tokens, bins)
        if both is not None:
            return _costliest_first(both, costs, np.arange(total) // bins.micro_batches)
    if intra is None:
        formed = in_order(tokens, total, cap)
    else:
        formed = by_method(intra, costs, tokens, total, cap)
    if inter is None:
        return np.where(formed < 0, -1, _in_turn(formed, bins.buckets, bins.micro_batches))
    loads = _loads(formed, costs, total)
    return _costliest_first(formed, costs, deal(inter, loads, bins.buckets))


def _loads(formed: Int64Array, costs: Costs, micro_batches: int) -> Costs:
    """[micro_batches] cost of each."""
    placed = formed >= 0
    loads: Costs = sums(costs[placed], formed[placed], micro_batches)
    return loads


def _costliest_first(formed: Int64Array, costs: Costs, bucket_of: Int64Array) -> Int64Array:
    """Numbers micro-batches bucket after bucket, from the costliest of each on.

    Args:
        formed: [samples] the micro-batch of each, -1 for none.
        costs: [samples] of each.
        bucket_of: [micro_batches] the bucket of each.
    """
    order = largest_first(_loads(formed, costs, len(bucket_of)))
    order = order[bucket_of[order].argsort(kind="stable")]
    number = np.empty(len(bucket_of), np.int64)
    number[order] = np.arange(len(bucket_of))
    return np.where(formed < 0, -1, number[formed])


def _ordered(bins: Int64Array, costs: Costs | None, buckets: int, micro_batches: int) -> Assignment:
    """Samples of a micro-batch by descending costs, or as drawn."""
    count = len(bins)
    placed = int(np.count_nonzero(bins >= 0))
    rank = np.arange(count)
    if costs is not None:
        rank = np.empty(count, np.int64)
        rank[largest_first(costs)] = np.arange(count)
    # [placed] micro-batch after micro-batch
    rows = ((bins << 32) + rank).argsort()[count - placed :]
    starts = np.append(0, np.bincount(bins[rows], minlength=buckets * micro_batches).cumsum())
    columns = np.full((3, count), -1, np.int64)
    columns[:2, rows] = np.divmod(bins[rows], micro_batches)
    columns[2, rows] = np.arange(placed) - starts[bins[rows]]
    return Assignment.of(*columns, buckets=buckets, micro_batches=micro_batches)


def deal(method: str, costs: Costs, buckets: int) -> Int64Array:
    """Deals micro-batches to buckets, equally many to each.

    Algorithm 1 (lines 7 to 15) deals them, costliest first, to the buckets in turn, so that the
    first bucket gets the costlier one each time. `greedy` gives each to the least loaded bucket
    that still lacks one, and `karmarkar_karp` is its balanced form, with one micro-batch for each
    bucket in every part that is merged. There no bucket can have two of the cheapest part besides a
    very costly one, so where `greedy` leaves less to the most loaded bucket, its result is taken.

    Args:
        method: see `evenstep.strategy.balance.methods`.
        costs: [micro_batches] of each; a multiple of `buckets` of them.
        buckets: number of buckets.

    Returns:
        [micro_batches] the bucket of each.
    """
    whole = whole_costs(costs)
    bucket_of = place(whole, buckets, equal_counts=True)
    assert bucket_of is not None  # tokens are not limited
    if method == "karmarkar_karp":
        both = _karmarkar_karp(whole, buckets), bucket_of
        bucket_of = min(both, key=lambda each: sums(whole, each, buckets).max())
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
