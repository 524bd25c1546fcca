"""Items to a fixed number of bins of like load, or to the fewest bins that hold them.

`partition` gives the most loaded bin as little load as possible. Items are samples or documents
with their costs; bins are ranks or micro-batches, and the load of a bin is the sum of its items'
costs.

Invariant: every item is in exactly one bin; no bin holds more than `cap` tokens, whatever that does
to the loads; and equal arguments give equal partitions on every machine. As many bins as
`bins_needed` returns always suffice. All decisions are taken in whole numbers: costs of type float
are first scaled, to a part in 10^15 of their sum, so that no result depends on the order of
additions.

`best_fit_decreasing` makes the fewest groups of whole samples under a token capacity. Samples are
placed from the longest to the shortest, each into the group with the least free space that still
holds it, or into a new one. On real lengths that reaches the lower bound.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.groups import Groups, longest_first
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import (
    Costs,
    check_tokens,
    checked_costs,
    largest_first,
    sums,
    whole_by_group,
)
from evenstep.plan.partition.local_search import improve
from evenstep.plan.value_checks import check_at_least


def best_fit_decreasing(lengths: Int64Array, capacity: int) -> Groups:
    """Packs samples into groups of at most `capacity` tokens.

    Deterministic: samples of one length go in order of arrival, and of
    groups with the same free space the one that reached it last is taken. Samples of 6, 5, 4, 3
    and 2 tokens and a capacity of 10 make the groups {6, 4} and {5, 3, 2}.

    Args:
        lengths: [samples] int64, each positive and below 2**31.
        capacity: tokens that a group holds.

    Returns:
        Groups of positions in `lengths`, in the order in which they were opened; within a group
        from the longest sample to the shortest.

    Raises:
        ConfigurationError: a sample is longer than the capacity.
    """
    if not len(lengths):
        return Groups.empty()
    order = longest_first(lengths)
    descending = lengths[order]
    if descending[0] > capacity:
        raise ConfigurationError(
            f"sample {order[0]} has {descending[0]:,} tokens, over the capacity of {capacity:,}; "
            "truncate or split it in the dataset, or raise max_tokens"
        )
    groups = Groups.by_label(_place(descending, capacity))
    return Groups(order[groups.members], groups.offsets)


def _place(descending: Int64Array, capacity: int) -> Int64Array:
    """The groups of samples in the given order.

    Args:
        descending: [samples] lengths, longest first, none above `capacity`.

    Returns:
        [samples] the group of each, numbered in the order of opening.
    """
    lengths: list[int] = descending.tolist()
    shortest = lengths[-1]
    spaces: list[int] = []  # free spaces that some group has, each once, ascending
    holders: dict[int, list[int]] = {}  # the groups with that free space, latest last
    placed: list[int] = []
    opened = 0
    for length in lengths:
        at = bisect_left(spaces, length)
        if at < len(spaces):
            space = spaces[at]
            groups = holders[space]
            group = groups.pop()
            if not groups:
                del spaces[at]
        else:
            space, group = capacity, opened
            opened += 1
        placed.append(group)
        space -= length
        if space >= shortest:
            groups = holders.setdefault(space, [])
            if not groups:
                spaces.insert(bisect_left(spaces, space), space)
            groups.append(group)
    return np.array(placed, np.int64)


_CLOSE = 10_000
"""One part in this many above the mean load is close enough: costs are known less exactly."""


@dataclass(frozen=True)
class Partition:
    """Which bin each item is in. Bins may be empty."""

    bin_of: Int64Array
    """[items] the bin of each item."""
    loads: Costs
    """[bins] sum of the costs in each bin, int64 or float64 as the costs are."""
    tokens: Int64Array | None
    """[bins] tokens in each bin; None where they were not given."""


def partition(
    costs: npt.ArrayLike,
    bins: int,
    *,
    tokens: npt.ArrayLike | None = None,
    cap: int | None = None,
) -> Partition:
    """Divides items among bins.

    The costliest item goes first, each to the least loaded bin with room (LPT): at most
    4/3 - 1/(3 bins) times the optimum where nothing is limited. Then items are moved and swapped
    between bins, in a bounded number of rounds, until the largest load is within 1e-4 of the mean
    or of the largest cost, or no exchange lowers it. Where the cap leaves no room for an item, the
    item with most tokens goes first instead; and if that fails too, items are packed by best fit.

    Args:
        costs: [items] int64 or float64, finite and not negative.
        bins: number of bins, at least 1.
        tokens: [items] int64 tokens of each item, at least 1; needed with `cap`.
        cap: most tokens in a bin, below 2**31.

    Raises:
        ConfigurationError: an argument is wrong; an item exceeds the cap; or not all items fit
            within it, and the message then says how many bins suffice.
    """
    check_at_least(1, bins=bins)
    given = checked_costs(costs)
    sizes = None if tokens is None else check_tokens(tokens, len(given), cap)
    if sizes is None and cap is not None:
        raise ConfigurationError(f"cap={cap:,} needs the tokens of each item")
    whole = whole_by_group(given, np.array([len(given)]))
    if sizes is None or cap is None:
        found = place(whole, bins)
    else:
        found = place_within(whole, sizes, bins, cap)
    if found is None:
        assert sizes is not None
        assert cap is not None  # without a cap, every item has room
        raise ConfigurationError(
            f"{len(sizes):,} items of {int(sizes.sum()):,} tokens do not fit into bins={bins} of "
            f"cap={cap:,} tokens: take {bins_needed(sizes, cap):,} bins, see bins_needed, or raise "
            "cap"
        )
    bound = max(-(-int(whole.sum()) // bins), int(whole.max(initial=0)))  # of the largest load
    found = improve(found, whole, bins, goal=bound + bound // _CLOSE, tokens=sizes, cap=cap)
    held = None if sizes is None else sums(sizes, found, bins)
    return Partition(found, sums(given, found, bins), held)


def place_within(costs: Int64Array, tokens: Int64Array, bins: int, cap: int) -> Int64Array | None:
    """Greedy placement within the cap: the costliest item first, or else the longest, or else by
    best fit.

    Returns:
        [items] the bin of each; None where they do not fit.
    """
    for order in (None, largest_first(tokens)):
        found = place(costs, bins, tokens=tokens, cap=cap, order=order)
        if found is not None:
            return found
    fitted = best_fit_decreasing(tokens, cap)
    if len(fitted) > bins:
        return None
    return fitted.labels()


def bins_needed(tokens: npt.ArrayLike, cap: int) -> int:
    """Bins that suffice to hold all items within the cap: with that many, `partition` never fails.
    Hardly ever more than the fewest possible.

    Args:
        tokens: [items] int64 tokens of each item, at least 1.
        cap: most tokens in a bin, below 2**31.

    Returns:
        At least 1.

    Raises:
        ConfigurationError: an item exceeds the cap.
    """
    return max(len(best_fit_decreasing(check_tokens(tokens, None, cap), cap)), 1)
