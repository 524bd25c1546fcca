"""Items to a fixed number of bins, so that the most loaded bin has as little load as possible.

Items are samples or documents with their costs; bins are ranks or micro-batches, and the load of a
bin is the sum of its items' costs.

Invariant: every item is in exactly one bin; no bin holds more than `cap` tokens, whatever that does
to the loads; and equal arguments give equal partitions on every machine. As many bins as
`bins_needed` returns always suffice. All decisions are taken in whole numbers: costs of type float
are first scaled, to a part in 10^15 of their sum, so that no result depends on the order of
additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_one_of
from evenstep.plan.groups.groups import Groups
from evenstep.plan.partition.best_fit import best_fit_decreasing
from evenstep.plan.partition.bounds import least_load
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import Costs, Items, largest_first, sums
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.plan.partition.local_search import Limits, improve

METHODS = ("lpt", "karmarkar-karp", "zigzag")
_CLOSE = 10_000
"""One part in this many above the lower bound is close enough: costs are known less exactly."""


@dataclass(frozen=True)
class Partition:
    """Which bin each item is in. Bins may be empty."""

    bin_of: Int64Array
    """[items] the bin of each item."""
    loads: Costs
    """[bins] sum of the costs in each bin, int64 or float64 as the costs are."""
    tokens: Int64Array | None
    """[bins] tokens in each bin; None where they were not given."""
    method: str
    """The method that made it: the one asked for, or its substitute under the cap; see
    `partition`."""

    def __len__(self) -> int:
        return len(self.loads)

    @property
    def counts(self) -> Int64Array:
        """[bins] items in each bin."""
        return np.bincount(self.bin_of, minlength=len(self))

    @property
    def imbalance(self) -> float:
        """The largest load over the mean load: 1.0 is perfect, also where all loads are 0."""
        total = float(self.loads.sum())
        return float(self.loads.max()) * len(self) / total if total else 1.0

    def items(self, b: int) -> Int64Array:
        """Positions of the items in bin `b`, ascending."""
        return np.flatnonzero(self.bin_of == b)

    def groups(self) -> Groups:
        """One group of item positions, ascending, for each bin.

        Raises:
            ConfigurationError: a bin is empty, which no group can be.
        """
        counts = self.counts
        if not counts.all():
            raise ConfigurationError(
                f"{(counts == 0).sum()} of bins={len(self)} are empty, for {len(self.bin_of)} "
                "items, and groups cannot be; take fewer bins, or read the bins with items()"
            )
        return Groups.by_label(self.bin_of)


def partition(
    costs: npt.ArrayLike,
    bins: int,
    *,
    tokens: npt.ArrayLike | None = None,
    cap: int | None = None,
    method: str = "lpt",
    equal_counts: bool = False,
    together: npt.ArrayLike | None = None,
    exchange: bool = True,
) -> Partition:
    """Divides items among bins so that the largest load is as small as possible.

    A cap comes before the method. Where the method's partition exceeds it, the first of these that
    does not replaces it: "lpt", each item to the least loaded bin that has room; "lpt-by-tokens",
    the same with the longest item first; and "best-fit", the fewest bins by tokens, or with
    `equal_counts` "even-tokens", the tokens themselves divided as evenly as found.

    Args:
        costs: [items] int64 or float64, finite and not negative.
        bins: number of bins, at least 1.
        tokens: [items] int64 tokens of each item, at least 1.
        cap: most tokens in a bin, below 2**31; needs `tokens`.
        method: "lpt", the costliest item first, each to the least loaded bin: without limits at
            most 4/3 - 1/(3 bins) times the optimum, and close to it with many items;
            "karmarkar-karp", which merges partitions, closer still, ten to fifty times slower;
            "zigzag", items from the costliest on to bins 0, 1, ..., k-1, k-1, ..., 1, 0, 0, .... Of
            equal items, and of equally loaded bins, the first goes first.
        equal_counts: every bin gets as many items as any other, or one less.
        together: [items] int64 ids: items of one id go to the same bin, and are one item to
            everything else here, `equal_counts` too.
        exchange: whether items are then moved and swapped between bins, in a bounded number of
            rounds, until the largest load is within 1e-4 of `lower_bound` or no exchange lowers it.

    Raises:
        ConfigurationError: an argument is wrong; an item, or one id's items, exceed the cap; or
            not all items fit within it; the message then says how many bins suffice.
    """
    check_at_least(1, bins=bins)
    check_one_of(METHODS, method=method)
    if equal_counts and method == "karmarkar-karp":
        raise ConfigurationError(
            f"method={method!r} leaves counts as they come; use 'lpt' or 'zigzag' with equal_counts"
        )
    items = Items.read(costs, tokens, together)
    items.check(cap)
    made, found = _within(items, bins, cap, method, equal_counts)
    if exchange:
        bound = int(least_load(items.whole, bins, equal_counts, items.tokens, cap))
        limits = Limits(tokens=items.tokens, cap=cap, equal_counts=equal_counts)
        goal = bound + bound // _CLOSE
        found = improve(found, items.whole, bins, goal=goal, limits=limits)
    return Partition(
        found if items.unit_of is None else found[items.unit_of],
        sums(items.costs, found, bins),
        None if items.tokens is None else sums(items.tokens, found, bins),
        made,
    )


def bins_needed(
    tokens: npt.ArrayLike,
    cap: int,
    *,
    multiple_of: int = 1,
    together: npt.ArrayLike | None = None,
) -> int:
    """Bins that suffice to hold all items within the cap: with that many, `partition` never fails,
    except with `equal_counts`. Hardly ever more than the fewest possible.

    Args:
        tokens: [items] int64 tokens of each item, at least 1.
        cap: most tokens in a bin, below 2**31.
        multiple_of: the number of bins is a multiple of it, such as of the number of data-parallel
            ranks or of pipeline stages.
        together: as for `partition`.

    Returns:
        A positive multiple of `multiple_of`.

    Raises:
        ConfigurationError: an item, or one id's items, exceed the cap.
    """
    check_at_least(1, multiple_of=multiple_of)
    items = Items.read(tokens, tokens, together)
    items.check(cap)
    assert items.tokens is not None
    needed = len(best_fit_decreasing(items.tokens, cap))
    return max(-(-needed // multiple_of), 1) * multiple_of


def _within(
    items: Items, bins: int, cap: int | None, method: str, equal_counts: bool
) -> tuple[str, Int64Array]:
    """The method and the bins of the first partition within the cap."""
    candidates = _candidates(items, bins, cap, method, equal_counts)
    most_even: int | None = None
    for made, found in candidates:
        if found is None:
            continue
        if cap is None or items.tokens is None:
            return made, found
        largest = int(sums(items.tokens, found, bins).max())
        if largest <= cap:
            return made, found
        most_even = largest if most_even is None else min(most_even, largest)
    assert cap is not None
    assert items.tokens is not None
    total = int(items.tokens.sum())
    wanted = f"{len(items.tokens):,} items of {total:,} tokens do not fit into bins={bins} of cap="
    wanted += f"{cap:,} tokens"
    if equal_counts:
        raise ConfigurationError(
            f"{wanted} with equal_counts=True: raise cap to {most_even:,}, take more bins, or let "
            "counts differ"
        )
    needed = bins_needed(items.tokens, cap)
    raise ConfigurationError(f"{wanted}: take {needed:,} bins, see bins_needed, or raise cap")


def _candidates(
    items: Items, bins: int, cap: int | None, method: str, equal_counts: bool
) -> Iterator[tuple[str, Int64Array | None]]:
    """The method's partition and its substitutes, in turn; None for one that was not found."""
    costs, tokens = items.whole, items.tokens
    order = largest_first(costs)
    limits: dict[str, Any] = {"tokens": tokens, "cap": cap, "equal_counts": equal_counts}
    if method == "karmarkar-karp":
        yield method, karmarkar_karp(costs, bins, order)
    elif method == "zigzag":
        yield method, _zigzag(bins, order)
    yield "lpt", place(costs, bins, order=order, **limits)
    if tokens is None or cap is None:
        return
    by_tokens = largest_first(tokens)
    yield "lpt-by-tokens", place(costs, bins, order=by_tokens, **limits)
    if equal_counts:
        even = place(tokens, bins, order=by_tokens, equal_counts=True)
        assert even is not None  # nothing but counts is limited
        counted = Limits(equal_counts=True)
        yield "even-tokens", improve(even, tokens, bins, goal=cap, limits=counted)
        return
    fitted = best_fit_decreasing(tokens, cap)
    if len(fitted) <= bins:
        bin_of = np.empty(len(tokens), np.int64)
        bin_of[fitted.members] = np.arange(len(fitted)).repeat(fitted.sizes)
        yield "best-fit", bin_of


def _zigzag(bins: int, order: Int64Array) -> Int64Array:
    turn = np.arange(len(order)) % (2 * bins)
    bin_of = np.empty(len(order), np.int64)
    bin_of[order] = np.minimum(turn, 2 * bins - 1 - turn)
    return bin_of
