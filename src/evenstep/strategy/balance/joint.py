"""Samples to buckets and to micro-batches at once: both levels of balancing together.

Taken one after the other, as in OVERLORD's Algorithm 1, the levels get in each other's way: a
sample that costs more than a mean micro-batch makes one by itself, and its bucket then gets as many
other micro-batches as any, none of which can be lighter to make up for it. Here buckets are
balanced first: each sample, the costliest first, goes to the least loaded bucket that has room in
one of its micro-batches, and there to the least loaded that has room. So the rest of that bucket is
light.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition import bins_needed
from evenstep.plan.partition.greedy import fill_empty, place
from evenstep.plan.partition.items import Costs, largest_first, sums, whole_by_group, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.strategy.balance.intra import count_within
from evenstep.strategy.balance.methods import Method, bins_by

_FINE = 256
"""How many samples have room is determined to one part in this many of them."""


def by_bucket_first(
    method: Method,
    costs: Costs,
    tokens: Int64Array,
    buckets: int,
    micro_batches: int,
    cap: int | None,
) -> Int64Array | None:
    """Places samples in micro-batches, buckets first.

    Args:
        method: see `evenstep.strategy.balance.methods`; methods other than `greedy` divide all
            samples among buckets, and then those of each bucket among its micro-batches.
        costs, tokens: [samples] of each, in the order drawn.
        buckets: number of buckets.
        micro_batches: number of micro-batches of each bucket.
        cap: tokens that a micro-batch holds; None for no limit.

    Returns:
        [samples] the micro-batch of each, numbered bucket after bucket, none of them empty if there
        are as many samples. Where the method exceeds the cap, `greedy` replaces it; where not all
        samples can have room, those drawn first that `greedy` finds room for, and -1 for the
        others. None where all may have room, but not this way.
    """
    bins = buckets * micro_batches
    within = count_within(tokens, bins, cap)

    def greedy(count: int) -> Int64Array | None:
        return place(
            whole_costs(costs[:count]),
            bins,
            tokens=tokens[:count],
            cap=cap,
            per_group=micro_batches,
            reopen=None,
        )

    if within == len(tokens):
        if method != "greedy":
            bin_of = _by_method(method, costs, tokens, buckets, micro_batches, cap)
            if bin_of is not None or callable(method):
                return bin_of
        bin_of = greedy(within)
        if bin_of is not None:
            return fill_empty(bin_of, costs, bins)
        assert cap is not None
        if bins_needed(tokens, cap) <= bins:
            return None
    elif callable(method):
        return None
    found = _for_most_samples(greedy, min(bins, within), within)
    filled = fill_empty(found, costs[: len(found)], bins)
    return np.append(filled, np.full(len(tokens) - len(found), -1, np.int64))


def _for_most_samples(
    attempt: Callable[[int], Int64Array | None], least: int, most: int
) -> Int64Array:
    """The result of `attempt` for as many samples as are found to have room, by bisection from
    `most` downwards, as little is usually missing.

    Args:
        least: samples that always have room.
    """
    fine = 1 + most // _FINE
    fits, fails, step = least, most + 1, fine
    best = None
    while fails - fits > fine or best is None:
        middle = (fits + fails) // 2 if best is not None else max(fails - step, least)
        found = attempt(middle)
        if found is None:
            fails, step = middle, 2 * step
        else:
            fits, best = middle, found
    return best


def _by_method(
    method: Method,
    costs: Costs,
    tokens: Int64Array,
    buckets: int,
    micro_batches: int,
    cap: int | None,
) -> Int64Array | None:
    """All samples among buckets, then those of each bucket among its micro-batches; None where one
    exceeds the cap."""
    bins = buckets * micro_batches
    bucket_of = bins_by(method, costs, buckets)
    order = bucket_of.argsort(kind="stable")  # [samples] bucket after bucket
    ends = np.bincount(bucket_of, minlength=buckets).cumsum()  # [buckets] in `order`
    bin_of = bucket_of * micro_batches
    if method == "karmarkar_karp":
        # All buckets at once, as there may be hundreds.
        whole = whole_by_group(costs[order], ends)
        costliest = largest_first(whole)
        costliest = costliest[bucket_of[order][costliest].argsort(kind="stable")]
        bin_of[order] += karmarkar_karp(whole, micro_batches, costliest, ends=ends)
    else:
        for rows in np.split(order, ends[:-1]):
            bin_of[rows] += bins_by(method, costs[rows], micro_batches)
    bin_of = fill_empty(bin_of, costs, bins)
    over = cap is not None and len(tokens) and sums(tokens, bin_of, bins).max() > cap
    return None if over else bin_of
