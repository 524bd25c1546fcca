"""Which documents wait, and what all ranks aim at in a step.

A document that alone costs more than a micro-batch without such documents is an *outlier*. It waits
until every rank holds as many that go with it as a step has micro-batches; then one goes into each
(WLB-LLM, section 4.2). Outliers go together if, in the room that the cap leaves beside each of
them, ordinary documents make up for what it costs less than the dearest.

The *level* is what a micro-batch of ordinary documents costs: ``context`` times the mean cost of
their tokens, as the windows of all ranks hold them.

All ranks compute both from the same integers. Each sends what its window holds in sum, and its
dearest documents one by one: `LISTED` for each micro-batch, however large the window is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.packing.step_limits import PackingOptions

LISTED = 16
"""Documents that a rank names for each of its micro-batches. With half as many, the dearest, which
wait longest for others like them, leave no room on the list for those that go together."""
_AGE_BITS = 20
_FINER = 32
"""Dearest costs are tried in steps of one in so many."""
_FILLED = 97
"""Percent of the room beside an outlier that ordinary documents fill."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What all ranks do in a step."""

    level: int
    """Cost above which a document is an outlier."""
    cost: int
    """What every micro-batch should cost: the level, or as much as the dearest outlier of the
    step."""
    released: Int64Array
    """[ranks, at most micro_batches] places of the step's outliers in the list of each rank; -1 for
    none."""


def listed(lengths: Int64Array, ages: Int64Array, options: PackingOptions) -> Int64Array:
    """[at most LISTED x micro_batches] positions of the documents that a rank names: those that
    have waited `max_delay`, the oldest first, and then the longest."""
    late = np.where(ages >= options.max_delay, ages, -1)
    return np.lexsort((-lengths, -late))[: LISTED * options.micro_batches]


def named(lengths: Int64Array, ages: Int64Array, options: PackingOptions) -> Int64Array:
    """[LISTED x micro_batches] lengths and ages of `listed` documents, one int64 for both, followed
    by zeros."""
    found = listed(lengths, ages, options)
    message = np.zeros(LISTED * options.micro_batches, np.int64)
    aged = np.minimum(ages[found], (1 << _AGE_BITS) - 1)
    message[: len(found)] = lengths[found] << _AGE_BITS | aged
    return message


def agree(tokens: int, cost: int, names: Int64Array, options: PackingOptions) -> Aim:
    """
    Args:
        tokens, cost: of the windows of all ranks together.
        names: [ranks, LISTED x micro_batches] what each rank makes by `named`.
    """
    lengths, ages = names >> _AGE_BITS, names & ((1 << _AGE_BITS) - 1)
    costs = options.cost.of_documents(lengths)  # [ranks, listed]
    level = _level(tokens, cost, lengths, costs, options.context)
    waiting = costs > level
    late = waiting & (ages >= options.max_delay)
    fitting = waiting if late.any() else _together(lengths, costs, ages, level, options)
    if not fitting.any():
        return Aim(level=level, cost=level, released=np.full((len(names), 1), -1))
    oldest = int(np.where(fitting, ages, -1).argmax())
    apart = np.abs(costs - costs.flat[oldest])
    order = np.lexsort((apart, -np.where(late, ages, -1), ~fitting))[:, : options.micro_batches]
    chosen = np.take_along_axis(fitting, order, axis=1)
    dearest = int(np.take_along_axis(costs, order, axis=1)[chosen].max())
    return Aim(level=level, cost=dearest, released=np.where(chosen, order, -1))


def _together(
    lengths: Int64Array,
    costs: Int64Array,
    ages: Int64Array,
    level: int,
    options: PackingOptions,
) -> Flags:
    """[ranks, listed] outliers that go together, among them enough of every rank; none if there are
    not. Of several such sets, the one with the oldest outlier, and then the cheapest."""
    waiting = costs > level
    found = np.zeros_like(waiting)
    if int(waiting.sum(axis=1).min()) < options.micro_batches:
        return found
    room = (options.cap - lengths) * _FILLED // 100
    reach = costs + room * (level // options.context)
    dearest, best, cost = int(costs.max()), -1, level
    while cost < dearest:
        cost = min(cost + cost // _FINER + 1, dearest)
        fits = waiting & (costs <= cost) & (reach >= cost)
        enough = int(fits.sum(axis=1).min()) >= options.micro_batches
        if enough and (oldest := int(ages[fits].max())) > best:
            best, found = oldest, fits
    return found


def _level(tokens: int, cost: int, lengths: Int64Array, costs: Int64Array, context: int) -> int:
    """The largest cost that is `context` times the mean cost of a token in documents which cost no
    more. Of documents of 2, 2 and 20 tokens that cost their squares, at ``context=10``, it is 20:
    with the third one, which costs 400, it would be 170.

    Args:
        tokens, cost: of all documents.
        lengths, costs: of the dearest of them.
    """
    level = context * cost // tokens
    order = np.argsort(-costs, axis=None, kind="stable")
    for length, one in zip(lengths.flat[order].tolist(), costs.flat[order].tolist()):
        if one <= level or length >= tokens:
            break
        tokens, cost = tokens - length, cost - one
        level = context * cost // tokens
    return level
