"""`plan_rebalance`: an update's sequences to ranks and micro-batches.

Lengths of rollouts are known only when they have been generated, on whichever rank that was. Then
all ranks know all lengths, and this function tells each which sequences it trains on: in as many
micro-batches as every other rank, none over the limit, and each as costly as those that other ranks
train on at the same time. It is a function of its arguments alone, so all ranks find the same.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, GroupShapes
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.groups import Groups
from evenstep.plan.partition import partition
from evenstep.plan.partition.greedy import fill_empty
from evenstep.plan.partition.items import Costs, largest_first, sums, whole_costs
from evenstep.plan.rebalance.packed_bins import packed_bins
from evenstep.plan.rebalance.padded_bins import padded_bins
from evenstep.plan.rebalance.rebalancing import Rebalancing, fewest_micro_batches, least_imbalance
from evenstep.plan.value_checks import check_at_least, check_lengths

_GAIN = 0.01
"""Of the time, that more micro-batches have to gain."""


def plan_rebalance(
    lengths: npt.ArrayLike,
    *,
    ranks: int,
    max_tokens: int,
    packed: bool = True,
    cost: Cost | npt.ArrayLike | None = None,
    together: npt.ArrayLike | None = None,
    prompts: npt.ArrayLike | None = None,
    multiple_of: int = 1,
) -> Rebalancing:
    """Assigns each sequence to one micro-batch of one rank.

    Args:
        lengths: [sequences] tokens of each, prompt and answer, those of all ranks.
        ranks: data-parallel ranks, at most as many as sequences.
        max_tokens: tokens that a micro-batch holds, with its padding.
        packed: whether micro-batches are rows without padding.
        cost: the cost of a micro-batch; None is that of an unknown model: see `UNKNOWN_MODEL`. Or
            [sequences] what each costs by itself; only with `packed`.
        together: [sequences] int64 ids; sequences of one id, such as the answers to one prompt, go
            to the same rank. Micro-batches are then less even.
        prompts: [sequences] tokens of each one's prompt, where prompts are padded on the left and
            answers on the right, each to the longest of the micro-batch; only without `packed`.
        multiple_of: the number of micro-batches of a rank is a multiple of it, as pipelines need.

    Returns:
        As few micro-batches as memory allows, or `multiple_of` more where that takes 1 % less time.

    Raises:
        ConfigurationError: an argument is wrong, or there are fewer sequences than ranks.
        SampleError: a sequence has more than `max_tokens`.
    """
    check_at_least(1, ranks=ranks, max_tokens=max_tokens, multiple_of=multiple_of)
    if packed and prompts is not None:
        raise ConfigurationError("prompts= are for packed=False, where each is padded")
    tokens = _room(lengths, prompts, ranks, max_tokens)
    model, each = _costs(cost, tokens, packed)
    whole = whole_costs(each)
    if len(whole) != len(tokens):
        raise ConfigurationError(f"cost has {len(whole)} entries for {len(tokens)} sequences")
    every = [np.arange(len(tokens))]
    parts = every if together is None else _by_rank(whole, ranks, np.asarray(together))
    limits = {"ranks": ranks, "max_tokens": max_tokens}
    least = least_imbalance(whole, tokens, **limits) if packed else 1.0
    best: Rebalancing | None = None
    fewest = fewest_micro_batches(tokens, packed=packed, multiple_of=multiple_of, **limits)

    def placed(count: int) -> Int64Array | None:
        """[sequences] the bin of each, numbered part after part; None where they do not fit."""
        bin_of = np.empty(len(tokens), np.int64)
        own, bins = ranks // len(parts), ranks * count // len(parts)  # of a part
        for number, part in enumerate(parts):
            if packed:
                found = packed_bins(whole[part], tokens[part], own, count, max_tokens)
            else:
                found = padded_bins(tokens[part], model, own, count, max_tokens)
            if found is None:
                return None
            bin_of[part] = number * bins + fill_empty(found, whole[part], bins)
        return bin_of

    for count in itertools.count(fewest, multiple_of):
        if (bin_of := placed(count)) is None:
            continue
        loads = _loads(bin_of, ranks * count, tokens, each if packed else None, model)
        found = _aligned(bin_of, loads, ranks, count, mixed=together is None)
        if best is not None:
            return found if found.time < (1 - _GAIN) * best.time else best
        if found.imbalance <= least + _GAIN or (count + multiple_of) * ranks > len(tokens):
            return found
        best = found
    raise AssertionError("sequences fit when each is alone")


def _room(
    lengths: npt.ArrayLike, prompts: npt.ArrayLike | None, ranks: int, max_tokens: int
) -> Int64Array:
    """[sequences] the tokens of a row that each needs at least; enough sequences, none too long."""
    tokens = check_lengths(lengths)
    if prompts is not None:
        tokens = padded_apart(tokens, np.asarray(prompts))
    if len(tokens) < ranks:
        raise ConfigurationError(
            f"{len(tokens)} sequences are fewer than ranks={ranks}, so one would have none; "
            "generate more sequences for an update, or train on fewer ranks"
        )
    longest = int(tokens.argmax())
    if tokens[longest] > max_tokens:
        padding = "" if prompts is None else ", padded to the longest prompt and the longest answer"
        raise SampleError(
            f"sequence {longest} has {tokens[longest]:,} tokens{padding}, over "
            f"max_tokens={max_tokens:,}; generate shorter ones, or raise max_tokens"
        )
    return tokens


def _costs(cost: Any, tokens: Int64Array, packed: bool) -> tuple[Cost, Costs]:
    """The cost of a micro-batch, and [sequences] of each alone, packed."""
    if cost is None or callable(cost):
        model: Cost = UNKNOWN_MODEL if cost is None else cost
        return model, model(GroupShapes.of_equals(1, tokens), packed=True)
    if not packed:
        raise ConfigurationError("a cost for each sequence contradicts packed=False; pass a Cost")
    return UNKNOWN_MODEL, np.asarray(cost)


def _by_rank(costs: Int64Array, ranks: int, together: Int64Array) -> list[Int64Array]:
    """[ranks] the sequences of each, those of one id on the same rank."""
    if together.shape != costs.shape or together.dtype.kind not in "iu":
        raise ConfigurationError(
            f"together of shape {together.shape} and type {together.dtype} must be an integer for "
            f"each of {len(costs)} sequences"
        )
    ids, unit_of = np.unique(together, return_inverse=True)
    if len(ids) < ranks:
        raise ConfigurationError(
            f"together has {len(ids)} ids for ranks={ranks}, so a rank would have no sequence; "
            "give it at least as many ids as ranks"
        )
    rank_of = partition(sums(costs, unit_of, len(ids)), ranks).bin_of[unit_of]
    return [np.flatnonzero(rank_of == rank) for rank in range(ranks)]


def _aligned(
    bin_of: Int64Array, loads: Float64Array, ranks: int, micro_batches: int, *, mixed: bool
) -> Rebalancing:
    """Bins in the order of their cost, so that those which ranks train on at once cost the same.

    Args:
        loads: [ranks * micro_batches] the cost of each bin.
        mixed: whether a bin may go to any rank. It goes to the one that has had least.
    """
    bins = len(loads)
    rank, step = np.divmod(np.arange(bins), micro_batches)
    if mixed:
        had = np.zeros(ranks)
        for number, members in enumerate(largest_first(loads).reshape(micro_batches, ranks)):
            lowest = had.argsort(kind="stable")
            rank[members], step[members] = lowest, number
            had[lowest] += loads[members]
    else:
        order = largest_first(loads)
        order = order[rank[order].argsort(kind="stable")]  # rank after rank
        step[order] = np.arange(bins) % micro_batches
    costs = np.empty((ranks, micro_batches))
    costs[rank, step] = loads
    return Rebalancing(
        ranks=ranks,
        micro_batches=micro_batches,
        rank=rank[bin_of],
        micro_batch=step[bin_of],
        costs=costs,
    )


def _loads(
    bin_of: Int64Array, bins: int, tokens: Int64Array, each: Costs | None, model: Cost
) -> Float64Array:
    """[bins] the cost of each; 0 for empty ones."""
    if each is not None:
        found: Float64Array = sums(each, bin_of, bins).astype(np.float64)
        return found
    groups = Groups.by_label(bin_of)
    loads = np.zeros(bins)
    loads[np.unique(bin_of)] = model(groups.shapes(tokens), packed=False)
    return loads


def padded_apart(lengths: Int64Array, prompts: np.ndarray[Any, Any]) -> Int64Array:
    """[sequences] how wide rows are, at most, in a micro-batch of a sequence and others after it,
    in the order of these widths, the widest first.

    Args:
        lengths: [sequences] tokens of each, of prompt and answer.
        prompts: [sequences] tokens of each one's prompt.

    Raises:
        ConfigurationError: there is not one prompt for each sequence, or one is longer than it.
    """
    if prompts.shape != lengths.shape or prompts.dtype.kind not in "iu":
        raise ConfigurationError(
            f"prompts of shape {prompts.shape} and type {prompts.dtype} must be an integer for "
            f"each of {len(lengths)} sequences"
        )
    if ((prompts < 0) | (prompts > lengths)).any():
        number = int(((prompts < 0) | (prompts > lengths)).argmax())
        raise ConfigurationError(
            f"sequence {number} has {lengths[number]} tokens and a prompt of {prompts[number]}; "
            "count the tokens of prompt and answer in lengths"
        )
    ascending = lengths.argsort(kind="stable")
    prompt, answer = prompts[ascending], (lengths - prompts)[ascending]
    widths = np.empty_like(lengths)
    widths[ascending] = np.maximum.accumulate(prompt) + np.maximum.accumulate(answer)
    return widths
