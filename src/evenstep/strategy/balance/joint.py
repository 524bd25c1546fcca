"""Samples to buckets and to micro-batches at once: both levels of balancing together.

Taken one after the other, as in Algorithm 1, the levels get in each other's way: a sample that
costs more than a mean micro-batch makes one of its own, and its bucket then gets as many other
micro-batches as any, none of which can be lighter to make up for it. Here buckets are balanced
first: each sample, the costliest first, goes to the lightest bucket that has room in one of its
micro-batches, and there to the lightest that has room. So the rest of that bucket is light.

Of equally loaded buckets the first is taken, of equally loaded micro-batches the one with the
fewest samples, and of those the first. That decides everything, so the two writings, with heaps of
plain lists and for numba, have the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition import bins_needed
from evenstep.plan.partition.greedy import heaviest_first, tree_of, update
from evenstep.plan.partition.items import Items, sums, whole_by_group
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.strategy.balance.methods import Method, bins_by
from evenstep.strategy.sample_costs import Costs

__all__ = ["by_bucket_first", "filled", "greedy_by_bucket", "within_total"]


_NO_CAP = (1 << 62) - 1
_FINE = 256
"""How many samples have room is found to one part in this many of them."""


def by_bucket_first(
    method: Method,
    costs: Costs,
    tokens: Int64Array,
    buckets: int,
    micro_batches: int,
    cap: int | None,
    *,
    fast: bool = False,
) -> Int64Array | None:
    """
    Args:
        method: see `evenstep.strategy.balance.methods`; others than `greedy` make buckets of all samples, and
            then micro-batches of those of each bucket.
        costs, tokens: [samples] of each.
        buckets, micro_batches: to fill, and how many of them each has.
        cap: tokens that a micro-batch holds; None for no limit.
        fast: see `least_loaded`.

    Returns:
        [samples] the micro-batch of each, bucket after bucket, none of them empty where there are
        as many samples. Where the method exceeds the cap, `greedy` stands in; where not all can
        have room, as many as it finds room for, in the order drawn, and -1 for the others. None
        where all may have room, but not this way.
    """
    bins, room = buckets * micro_batches, (buckets, micro_batches, cap)
    within = within_total(tokens, bins, cap)
    if within == len(tokens):
        if method != "greedy":
            by_method = _by_method(method, costs, tokens, *room, fast=fast)
            if by_method is not None or callable(method):
                return by_method
        bin_of = greedy_by_bucket(costs, tokens, *room, fast=fast)
        if bin_of is not None:
            return filled(bin_of, costs, bins)
        assert cap is not None
        if bins_needed(tokens, cap) <= bins:
            return None
    elif callable(method):
        return None
    found = _as_many(
        lambda n: greedy_by_bucket(costs[:n], tokens[:n], *room, fast=fast), within, bins
    )
    rest = np.full(len(tokens) - len(found), -1, np.int64)
    return np.concatenate([filled(found, costs[: len(found)], bins), rest])


def within_total(tokens: Int64Array, bins: int, cap: int | None) -> int:
    """How many samples, in the order drawn, have no more tokens than all bins hold."""
    if cap is None:
        return len(tokens)
    return int(np.searchsorted(tokens.cumsum(), bins * cap, side="right"))


def _as_many(attempt: Callable[[int], Int64Array | None], most: int, bins: int) -> Int64Array:
    """The result for as many samples as are found to have room, looked for from `most` downwards,
    as little is usually missing. As many samples as there are bins always have room."""
    least, fine = min(bins, most), 1 + most // _FINE
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
    *,
    fast: bool,
) -> Int64Array | None:
    """Buckets of all samples, then micro-batches of those of each; None where one exceeds the
    cap."""
    bins = buckets * micro_batches
    bucket_of = bins_by(method, costs, buckets, fast=fast)
    order = bucket_of.argsort(kind="stable")
    ends = np.bincount(bucket_of, minlength=buckets).cumsum()
    bin_of = bucket_of * micro_batches
    if method == "karmarkar_karp":
        # All buckets at once, as there may be hundreds.
        whole = whole_by_group(costs[order], ends)
        heaviest = heaviest_first(whole)
        heaviest = heaviest[bucket_of[order][heaviest].argsort(kind="stable")]
        bin_of[order] += karmarkar_karp(whole, micro_batches, heaviest, ends=ends, fast=fast)
    else:
        for rows in np.split(order, ends[:-1]):
            bin_of[rows] += bins_by(method, costs[rows], micro_batches)
    bin_of = filled(bin_of, costs, bins)
    over = cap is not None and len(tokens) and sums(tokens, bin_of, bins).max() > cap
    return None if over else bin_of


def filled(bin_of: Int64Array, costs: Costs, bins: int) -> Int64Array:
    """Gives each empty bin one of the cheapest samples that are not alone in theirs, as far as
    there are any."""
    counts = np.bincount(bin_of, minlength=bins)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return bin_of
    bin_of = bin_of.copy()
    for row in costs.argsort(kind="stable").tolist():
        if not empty:
            break
        donor = bin_of[row]
        if counts[donor] > 1:
            counts[donor] -= 1
            bin_of[row] = empty.pop(0)
    return bin_of


def greedy_by_bucket(
    costs: Costs,
    tokens: Int64Array,
    buckets: int,
    micro_batches: int,
    cap: int | None,
    *,
    fast: bool = False,
) -> Int64Array | None:
    """What the module says; arguments and result as for `by_bucket_first`, but for empty bins."""
    whole = Items.read(costs, None, None).whole
    order = heaviest_first(whole)
    make = compiled() if fast else None
    values, sizes, limit = whole[order], tokens[order], _NO_CAP if cap is None else cap
    if make is None:
        found = _place(values.tolist(), sizes.tolist(), buckets, micro_batches, limit)
        placed = np.array(found, np.int64)
    else:
        placed = make(values, sizes, buckets, micro_batches, limit)
    if len(placed) < len(costs):
        return None
    bin_of = np.empty(len(costs), np.int64)
    bin_of[order] = placed
    return bin_of


def _place(
    weights: list[int], tokens: list[int], buckets: int, micro_batches: int, cap: int
) -> list[int]:
    queue = [(0, bucket) for bucket in range(buckets)]
    heapify(queue)
    # Of each bucket: (load, samples, number) of its micro-batches, and their tokens.
    bins = [[(0, 0, k) for k in range(micro_batches)] for _ in range(buckets)]
    used = [[0] * micro_batches for _ in range(buckets)]
    placed: list[int] = []
    for weight, size in zip(weights, tokens):
        passed = []
        while queue:
            load, bucket = heappop(queue)
            room = [one for one in bins[bucket] if used[bucket][one[2]] + size <= cap]
            if room:
                break
            passed.append((load, bucket))
        else:
            return placed
        held, count, k = min(room)
        bins[bucket][k] = (held + weight, count + 1, k)
        used[bucket][k] += size
        placed.append(bucket * micro_batches + k)
        heappush(queue, (load + weight, bucket))
        for one in passed:
            heappush(queue, one)
    return placed


@cache
def compiled() -> Callable[..., Int64Array] | None:
    """`_place` for numba, compiled at its first call; None where that is not installed."""
    try:
        import numba
    except ImportError:
        return None
    jit = numba.njit(nogil=True)
    fill = jit(_filler(jit(_lightest), jit(update)))

    def make(
        weights: Int64Array, tokens: Int64Array, buckets: int, micro_batches: int, cap: int
    ) -> Int64Array:
        tree = tree_of(buckets)
        placed = np.empty(len(weights), np.int64)
        loads = np.zeros(buckets, np.int64)
        held, counts, used = np.zeros((3, buckets * micro_batches), np.int64)
        state = (tree, loads, held, counts, used)
        return placed[: fill(weights, tokens, placed, *state, micro_batches, cap)]

    return make


def _lightest(
    held: Any, counts: Any, used: Any, bucket: Any, micro_batches: Any, size: Any, cap: Any
) -> Any:
    """The lightest micro-batch of a bucket that has room, or -1."""
    best = -1
    for k in range(bucket * micro_batches, (bucket + 1) * micro_batches):
        if used[k] + size > cap:
            continue
        if best < 0 or held[k] < held[best] or (held[k] == held[best] and counts[k] < counts[best]):
            best = k
    return best


def _filler(lightest: Callable[..., Any], update: Callable[..., None]) -> Callable[..., int]:
    def fill(
        weights: Any,
        tokens: Any,
        placed: Any,
        tree: Any,
        loads: Any,
        held: Any,
        counts: Any,
        used: Any,
        micro_batches: Any,
        cap: Any,
    ) -> Any:
        for item in range(len(weights)):
            size = tokens[item]
            bucket = tree[1]
            k = lightest(held, counts, used, bucket, micro_batches, size, cap)
            if k < 0:  # seldom: look at all of them
                bucket = -1
                for other in range(len(loads)):
                    if bucket < 0 or loads[other] < loads[bucket]:
                        found = lightest(held, counts, used, other, micro_batches, size, cap)
                        if found >= 0:
                            bucket, k = other, found
                if k < 0:
                    return item
            placed[item] = k
            held[k] += weights[item]
            counts[k] += 1
            used[k] += size
            loads[bucket] += weights[item]
            update(tree, loads, bucket, bucket)
        return len(weights)

    return fill
