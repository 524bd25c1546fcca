"""Samples into micro-batches: the intra-micro-batch level.

Micro-batches are bins of at most `cap` tokens. They are made by a balancing method over all
samples (Algorithm 1, line 6: greedy bin packing), or in the order in which samples were drawn.

Invariants: no bin holds more than the cap. No bin is empty where there are as many samples as bins,
as a rank without work would leave the others waiting in a collective. Samples that find no room are
the last drawn ones, all from one on, so that who was drawn first never waits for who was drawn
later; and there are none where the bins hold all.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.partition import bins_needed, partition
from evenstep.plan.partition.items import sums
from evenstep.strategy.balance.joint import filled, within_total
from evenstep.strategy.balance.methods import Method, bins_by, least_loaded
from evenstep.strategy.sample_costs import Costs, name_of

__all__ = ["by_method", "in_order"]


def by_method(
    method: Method,
    costs: Costs,
    tokens: Int64Array,
    bins: int,
    cap: int | None,
    *,
    fast: bool = False,
) -> Int64Array:
    """
    Args:
        method: see `evenstep.strategy.balance.methods`.
        costs: [samples] of each, in the order drawn.
        tokens: [samples] of each, from 1 to the cap.
        bins: micro-batches to make.
        cap: tokens that one holds; None for no limit.
        fast: see `least_loaded`.

    Returns:
        [samples] the bin of each, -1 for those that found no room. Where the method's bins exceed
        the cap, `greedy` under the cap stands in, and where that leaves samples over, what
        `partition` makes of the most samples, in the order drawn, that fit.

    Raises:
        ConfigurationError: a user's method gave no bins, or bins over the cap.
    """
    within = within_total(tokens, bins, cap)
    bin_of = np.full(len(tokens), -1, np.int64)
    bin_of[:within] = _placed(method, costs[:within], tokens[:within], bins, cap, fast)
    placed = int((bin_of >= 0).sum())
    bin_of[:placed] = filled(bin_of[:placed], costs[:placed], bins)
    return bin_of


def in_order(tokens: Int64Array, bins: int, cap: int | None) -> Int64Array:
    """Bins of consecutive samples with about equally many tokens; where one exceeds the cap, with
    no more in the largest than consecutive samples need, and filled up to the cap where some find
    no room. Arguments and result as for `by_method`."""
    count = len(tokens)
    if count < bins:
        return np.arange(count)
    running = np.append(0, tokens.cumsum())
    ends = np.searchsorted(running, np.arange(1, bins + 1) * running[-1] / bins)
    # Each bin ends behind the one before, and leaves one sample to each that follows.
    steps = np.arange(bins)
    ends = np.maximum.accumulate(np.maximum(ends - steps, 1)) + steps
    ends = np.minimum(ends, count - bins + 1 + steps)
    ends[-1] = count
    if cap is not None and np.diff(running[ends], prepend=0).max() > cap:
        ends = _least_filled(running, bins, cap)
    bin_of = np.full(count, -1, np.int64)
    bin_of[: ends[-1]] = np.arange(bins).repeat(np.diff(ends, prepend=0))
    return bin_of


def _placed(
    method: Method, costs: Costs, tokens: Int64Array, bins: int, cap: int | None, fast: bool
) -> Int64Array:
    if cap is None or method != "greedy":
        bin_of = bins_by(method, costs, bins, fast=fast)
        if cap is None or not len(tokens):
            return bin_of
        held = sums(tokens, bin_of, bins)
        if held.max() <= cap:
            return bin_of
        if callable(method):
            full = int(held.argmax())
            raise ConfigurationError(
                f"method {name_of(method)} put {held[full]:,} tokens into bin {full}, over "
                f"max_tokens={cap:,}; let it keep to that, or raise max_tokens"
            )
    capped = least_loaded(costs, bins, tokens, cap, fast=fast)
    if capped is not None:
        return capped
    fitting = _most_that_fit(tokens, bins, cap)
    bin_of = np.full(len(tokens), -1, np.int64)
    # Little room is left, so what fits may be uneven; exchanges mend that as far as they can.
    bin_of[:fitting] = partition(costs[:fitting], bins, tokens=tokens[:fitting], cap=cap).bin_of
    return bin_of


def _most_that_fit(tokens: Int64Array, bins: int, cap: int) -> int:
    """As many samples, in the order drawn, as are found to fit; never less than `bins` of them."""
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


def _least_filled(running: Int64Array, bins: int, cap: int) -> Int64Array:
    """`_filled_up` to the least limit with which all samples have room: filled to the cap, the
    first bins would be full, and the last ones hold a sample each."""
    count = len(running) - 1
    ends = _filled_up(running, bins, cap)
    if ends[-1] < count:
        return ends
    fails, fits = int(np.diff(running).max()) - 1, cap
    while fits - fails > 1:
        middle = (fails + fits) // 2
        tried = _filled_up(running, bins, middle)
        if tried[-1] == count:
            fits, ends = middle, tried
        else:
            fails = middle
    return ends


def _filled_up(running: Int64Array, bins: int, limit: int) -> Int64Array:
    """[bins] where each ends, filled up to a limit but for one sample that each other one needs."""
    count, ends, start = len(running) - 1, [], 0
    # Of a bin that begins at each sample.
    full = (np.searchsorted(running, running + limit, side="right") - 1).tolist()
    for left in range(bins - 1, -1, -1):
        start = min(full[start], count - left)
        ends.append(start)
    return np.array(ends, np.int64)
