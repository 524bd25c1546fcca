"""`plan_dynamic_context`: lengths to groups of ranks with equal work, in every micro-batch.

A function of lengths and options alone: all ranks that have the lengths have the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.dynamic_context.context_plan import ContextPlan
from evenstep.plan.dynamic_context.filling import fill_bins
from evenstep.plan.dynamic_context.group_sizes import group_sizes
from evenstep.plan.dynamic_context.merging import Loads, merge_groups
from evenstep.plan.dynamic_context.micro_batches import FILL, Dealer, Dealt
from evenstep.plan.dynamic_context.options import DynamicContext
from evenstep.plan.dynamic_context.parcels import Parcels
from evenstep.plan.dynamic_context.positions import place_groups

_TOLERANCE = 0.01
"""Share by which a rank may have more work than the mean before its group is merged."""

_GOOD = 0.015
"""Share by which a micro-batch may take longer than the mean before another is tried."""
_ENOUGH = 0.03
"""Share by which a step may take longer than the mean before more micro-batches are tried."""
_GAIN = 0.005
"""Share that more micro-batches must save."""
_TRIES = 2
"""Numbers of micro-batches that are tried, of those that are enough."""


@dataclass(frozen=True, eq=False)
class _MicroBatch:
    size: Int64Array
    """[groups] ranks of each group, in the order of their ranks."""
    parcels: Int64Array
    """Parcels, group after group."""
    counts: Int64Array
    """[groups] parcels of each."""
    time: float
    """Cost of the slowest rank, as planned."""
    good: bool
    """Whether other micro-batches would hardly be better."""


def plan_dynamic_context(lengths: npt.ArrayLike, options: DynamicContext) -> ContextPlan:
    """Plans one step: all documents, in as few micro-batches as memory allows.

    Args:
        lengths: [documents] tokens of each, at least 1.

    Returns:
        A plan for all ranks. Cut each group's documents over its ranks with
        `evenstep.plan.sharding.shard`.

    Raises:
        ConfigurationError: the lengths are not whole numbers in one dimension.
        SampleError: a document is empty, or does not fit on all ranks together.
    """
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigurationError(
            f"lengths of shape {given.shape} and type {given.dtype} must be whole numbers "
            "[documents]"
        )
    documents = given.astype(np.int64)
    options.check(documents)
    parcels = Parcels.of(documents, options)
    if float(parcels.cost.sum(dtype=np.float64)) > 2**61:
        raise ConfigurationError(
            f"{len(documents):,} documents cost more than an int64 holds at {options.cost}; use "
            "smaller coefficients of the same ratio"
        )
    return _plan(_best(parcels, options), parcels, options)


def _best(parcels: Parcels, options: DynamicContext) -> list[_MicroBatch]:
    """The micro-batches that take least time; as few as memory allows, or a few more where that
    saves time."""
    dealer = Dealer(parcels, options)
    needed = float(parcels.tokens.sum()) / (FILL * options.capacity)
    count = _multiple(math.ceil(needed), options)
    enough = (1 + _ENOUGH) * float(parcels.cost.sum()) / options.ranks
    best: list[_MicroBatch] = []
    tries = 0
    while tries < _TRIES:
        made = _micro_batches(dealer, count)
        if made is not None and (not best or _time(made) < (1 - _GAIN) * _time(best)):
            best = made
        if best and _time(best) <= enough:
            break
        tries += bool(best)
        if not best and count > 2 * len(parcels) + options.multiple_of:
            raise InvariantError(f"{len(parcels)} parcels fit in no plan for {options}")
        count = _multiple(count + max(count // 8, 1), options)
    return best


def _time(made: list[_MicroBatch]) -> float:
    return sum(each.time for each in made)


def _multiple(count: int, options: DynamicContext) -> int:
    step = options.multiple_of
    return max(-(-count // step), 1) * step


def _micro_batches(dealer: Dealer, count: int) -> list[_MicroBatch] | None:
    """`count` micro-batches; None if those are too few."""
    parcels, options = dealer.parcels, dealer.options
    dealt, made = Dealt(), []
    for number in range(count):
        best = None
        for share in dealer.shares(dealt, count - number):
            own, after = dealer.take(dealt, share, last=number == count - 1)
            groups = _grouped(parcels, own, options)
            if groups is None:
                continue
            wasted = groups.time * options.ranks - float(parcels.cost[own].sum())
            if best is None or wasted < best[0]:
                best = wasted, groups, after
            if groups.good:
                break
        if best is None:
            return None
        _, groups, dealt = best
        made.append(groups)
    return made


def _grouped(parcels: Parcels, own: Int64Array, options: DynamicContext) -> _MicroBatch | None:
    """The groups of a micro-batch of the parcels `own`, ascending; None if they do not fit."""
    columns = (parcels.tokens[own], parcels.cost[own], parcels.attention[own])
    mean = max(int(columns[1].sum()) / options.ranks, 1.0)
    found = group_sizes(*columns, options, mean, _TOLERANCE)
    if int(columns[0].sum()) > options.capacity or found is None:
        return None
    sizes, time = found
    bins = fill_bins(sizes, *columns[:2], options, time)
    if bins is None:
        return None
    sums = np.zeros((4, len(bins.size)), np.int64)
    for total, column in zip(sums, columns):
        np.add.at(total, bins.bin_of, column)
    np.maximum.at(sums[3], bins.bin_of, parcels.longest[own])
    limit = time * (1 + _TOLERANCE)
    into, slowest = merge_groups(Loads(bins.size, *sums), options, limit)
    kept = into == np.arange(len(into))
    group_of = (kept.cumsum() - 1)[into]  # [bins]
    size = np.zeros(np.count_nonzero(kept), np.int64)
    np.add.at(size, group_of, bins.size)
    placed = place_groups(size, options.exchange.node, options.powers_of_two)
    position = np.empty_like(placed)
    position[placed] = np.arange(len(placed))
    at = position[group_of[bins.bin_of]]  # [parcels] the group of each, in the order of ranks
    return _MicroBatch(
        size=size[placed],
        # Small numbers are sorted several times as fast.
        parcels=own[at.astype(np.min_scalar_type(len(size))).argsort(kind="stable")],
        counts=np.bincount(at, minlength=len(size)),
        time=slowest,
        good=slowest <= time * (1 + _GOOD) + options.rough(int(sums[3].max())),
    )


def _plan(made: list[_MicroBatch], parcels: Parcels, options: DynamicContext) -> ContextPlan:
    size = np.concatenate([each.size for each in made])
    counts = np.concatenate([each.counts for each in made])
    held = np.concatenate([each.parcels for each in made])
    documents, offsets = parcels.expanded(held, prefix_sums(counts))
    number = np.arange(len(made)).repeat([len(each.size) for each in made])
    return ContextPlan(
        ranks=options.ranks,
        micro_batches=len(made),
        micro_batch=number,
        first=prefix_sums(size)[:-1] - number * options.ranks,
        size=size,
        documents=documents,
        offsets=offsets,
    )
