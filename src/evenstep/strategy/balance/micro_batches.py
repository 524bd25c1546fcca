"""Samples into micro-batches: the intra-micro-batch level, and both levels of balancing together.

Micro-batches are bins of at most `cap` tokens. They are made by a balancing method over all samples
(OVERLORD's Algorithm 1, line 6: greedy bin packing), or in the order in which samples were drawn.

Invariants: no bin holds more than the cap. No bin is empty if there are as many samples as bins, as
a rank without one would leave the others waiting in a collective. Samples that find no room are all
those drawn from some sample on, so that none waits for one that was drawn later; and there are none
if the bins can hold all.

`by_bucket_first` takes samples to buckets and to micro-batches at once. Taken one after the other,
as in OVERLORD's Algorithm 1, the levels get in each other's way: a sample that costs more than a
mean micro-batch makes one by itself, and its bucket then gets as many other micro-batches as any,
none of which can be lighter to make up for it. Here buckets are balanced first: each sample, the
costliest first, goes to the least loaded bucket that has room in one of its micro-batches, and
there to the least loaded that has room. So the rest of that bucket is light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition import bins_needed, partition
from evenstep.plan.partition.greedy import fill_empty, place
from evenstep.plan.partition.items import Costs, largest_first, sums, whole_by_group, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.strategy.balance.methods import bins_by


@dataclass(frozen=True)
class Bins:
    """Micro-batches to make."""

    buckets: int
    micro_batches: int
    """Of each bucket."""
    cap: int | None
    """Tokens that one holds; None for no limit."""

    def __len__(self) -> int:
        return self.buckets * self.micro_batches


def by_method(
    method: str, costs: Costs, tokens: Int64Array, bins: int, cap: int | None
) -> Int64Array:
    """Bins by a balancing method.

    Args:
        method: see `evenstep.strategy.balance.methods`.
        costs: [samples] of each, in the order drawn.
        tokens: [samples] of each, from 1 to the cap.
        bins: micro-batches to make.
        cap: tokens that one holds; None for no limit.

    Returns:
        [samples] the bin of each, -1 for those that found no room. Where the method's bins exceed
        the cap, `greedy` under the cap replaces it; where that finds no room for all, `partition`
        of the most samples, in the order drawn, that fit.
    """
    within = count_within(tokens, bins, cap)
    bin_of = np.full(len(tokens), -1, np.int64)
    bin_of[:within] = _placed(method, costs[:within], tokens[:within], bins, cap)
    placed = int((bin_of >= 0).sum())
    bin_of[:placed] = fill_empty(bin_of[:placed], costs[:placed], bins)
    return bin_of


def in_order(tokens: Int64Array, bins: int, cap: int | None) -> Int64Array:
    """Bins of consecutive samples with about equally many tokens; where one exceeds the cap, all
    are filled up to it. Arguments and result as for `by_method`."""
    count = len(tokens)
    if count < bins:
        return np.arange(count)
    running = np.append(0, tokens.cumsum())
    ends = np.searchsorted(running, np.arange(1, bins + 1) * running[-1] / bins)
    # Each bin ends behind the one before, and leaves one sample to each that follows.
    number = np.arange(bins)
    ends = np.maximum.accumulate(np.maximum(ends - number, 1)) + number
    ends = np.minimum(ends, count - bins + 1 + number)
    ends[-1] = count
    if cap is not None and np.diff(running[ends], prepend=0).max() > cap:
        ends = _filled_up(running, bins, cap)
    bin_of = np.full(count, -1, np.int64)
    bin_of[: ends[-1]] = np.arange(bins).repeat(np.diff(ends, prepend=0))
    return bin_of


def _placed(
    method: str, costs: Costs, tokens: Int64Array, bins: int, cap: int | None
) -> Int64Array:
    """`by_method` before empty bins are filled, for samples with no more tokens than all bins."""
    if cap is None or method != "greedy":
        bin_of = bins_by(method, costs, bins)
        if cap is None or not len(tokens) or sums(tokens, bin_of, bins).max() <= cap:
            return bin_of
    capped = place(whole_costs(costs), bins, tokens=tokens, cap=cap)
    if capped is not None:
        return capped
    fitting = _most_that_fit(tokens, bins, cap)
    bin_of = np.full(len(tokens), -1, np.int64)
    # Little room is left, so greedy placement is uneven; exchanges make it as even as they can.
    bin_of[:fitting] = partition(costs[:fitting], bins, tokens=tokens[:fitting], cap=cap).bin_of
    return bin_of


def _most_that_fit(tokens: Int64Array, bins: int, cap: int) -> int:
    """How many samples, in the order drawn, are found to fit; never fewer than `bins` of them."""
    if bins_needed(tokens, cap) <= bins:
        return len(tokens)
    fits, fails = min(bins, len(tokens)), len(tokens)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if bins_needed(tokens[:middle], cap) <= bins:
            fits = middle
        else:
            fails = middle
    return fits


def _filled_up(running: Int64Array, bins: int, limit: int) -> Int64Array:
    """[bins] the sample before which each ends, filled up to a limit, except that each bin that
    follows keeps one sample. Tokens 5, 9, 2, 3, 3, 3 in four bins of up to 10 end at 1, 2, 5, 6.

    Args:
        running: [samples + 1] tokens of the first samples, from none to all.
    """
    count, ends, start = len(running) - 1, [], 0
    # [samples] the end of a full bin that begins at each sample.
    full = (np.searchsorted(running, running + limit, side="right") - 1).tolist()
    for left in range(bins - 1, -1, -1):
        start = min(full[start], count - left)
        ends.append(start)
    return np.array(ends, np.int64)


def count_within(tokens: Int64Array, bins: int, cap: int | None) -> int:
    """How many samples, in the order drawn, have no more tokens than all bins hold."""
    if cap is None:
        return len(tokens)
    return int(np.searchsorted(tokens.cumsum(), bins * cap, side="right"))


_FINE = 256
"""How many samples have room is determined to one part in this many of them."""


def by_bucket_first(method: str, costs: Costs, tokens: Int64Array, bins: Bins) -> Int64Array | None:
    """Places samples in micro-batches, buckets first.

    Args:
        method: see `evenstep.strategy.balance.methods`; `karmarkar_karp` divides all samples
            among buckets, and then those of each bucket among its micro-batches.
        costs, tokens: [samples] of each, in the order drawn.

    Returns:
        [samples] the micro-batch of each, numbered bucket after bucket, none of them empty if there
        are as many samples. Where the method exceeds the cap, `greedy` replaces it; where not all
        samples can have room, those drawn first that `greedy` finds room for, and -1 for the
        others. None where all may have room, but not this way.
    """
    cap, total = bins.cap, len(bins)
    within = count_within(tokens, total, cap)

    def greedy(count: int) -> Int64Array | None:
        limits: dict[str, Any] = {"cap": cap, "per_group": bins.micro_batches, "reopen": None}
        return place(whole_costs(costs[:count]), total, tokens=tokens[:count], **limits)

    if within == len(tokens):
        if method != "greedy":
            bin_of = _by_differencing(costs, tokens, bins)
            if bin_of is not None:
                return bin_of
        bin_of = greedy(within)
        if bin_of is not None:
            return fill_empty(bin_of, costs, total)
        assert cap is not None
        if bins_needed(tokens, cap) <= total:
            return None
    found = _for_most_samples(greedy, min(total, within), within)
    filled = fill_empty(found, costs[: len(found)], total)
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


def _by_differencing(costs: Costs, tokens: Int64Array, bins: Bins) -> Int64Array | None:
    """By `karmarkar_karp`, all samples among buckets, then those of each bucket among its
    micro-batches; None where one exceeds the cap."""
    bucket_of = bins_by("karmarkar_karp", costs, bins.buckets)
    order = bucket_of.argsort(kind="stable")  # [samples] bucket after bucket
    ends = np.bincount(bucket_of, minlength=bins.buckets).cumsum()  # [buckets] in `order`
    bin_of = bucket_of * bins.micro_batches
    # All buckets at once, as there may be hundreds.
    whole = whole_by_group(costs[order], ends)
    costliest = largest_first(whole)
    costliest = costliest[bucket_of[order][costliest].argsort(kind="stable")]
    bin_of[order] += karmarkar_karp(whole, bins.micro_batches, costliest, ends=ends)
    bin_of = fill_empty(bin_of, costs, len(bins))
    cap = bins.cap
    over = cap is not None and len(tokens) and sums(tokens, bin_of, len(bins)).max() > cap
    return None if over else bin_of
