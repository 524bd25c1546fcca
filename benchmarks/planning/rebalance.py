"""Sequences of updates to ranks and micro-batches by `plan_rebalance`, compared with other ways.

Every plan is measured alike. Ranks wait for each other in every micro-batch, so imbalance is the
sum over micro-batches of the slowest rank's cost, over the sum of the mean. The other ways give
each rank equally many sequences first, and divide those of each rank by themselves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cli.shared_options import parse_cost
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import ConfigurationError
from evenstep.plan.groups import Groups
from evenstep.plan.partition.items import largest_first, sums, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp
from evenstep.plan.rebalance import least_imbalance, plan_rebalance
from evenstep.plan.rng import RandomStream, generator
from evenstep.tools.report import text_table
from evenstep.tools.simulate.distributions import DISTRIBUTIONS
from evenstep.tools.simulate.lengths import load_lengths

_ANSWERS = (8, 16)
"""Answers to a prompt, at least and at most."""
Placed = tuple[Int64Array, Int64Array]
"""[sequences] the rank of each, and its micro-batch."""


def draw_updates(
    spec: str, *, ranks: int, samples: int, steps: int, seed: int = 0
) -> list[Int64Array]:
    """The lengths of the sequences of each update, in the order in which they were generated.

    Args:
        spec: lengths, as `load_lengths` takes it. Those of a file keep its order, and make as many
            updates as it holds, or one of fewer sequences. Those drawn from a distribution are
            answers to prompts: 8 to 16 that follow each other are alike.
        samples: sequences of each rank.
        steps: updates, at most.

    Raises:
        ConfigurationError: as `load_lengths`; or the file has fewer sequences than ranks.
    """
    if spec in DISTRIBUTIONS:
        lengths = _answers(spec, ranks * samples * steps, seed)
    else:
        lengths = load_lengths(spec)
    if len(lengths) < ranks:
        raise ConfigurationError(f"{spec} has {len(lengths):,} sequences, fewer than ranks={ranks}")
    each = ranks * min(samples, len(lengths) // ranks)
    count = min(steps, len(lengths) // each)
    return np.split(lengths[: each * count], count)


def _answers(name: str, count: int, seed: int) -> Int64Array:
    """[count] int64 lengths whose distribution is exactly the named one. A prompt decides half of
    the variance of its answers' (normal) scores."""
    random = generator(seed, RandomStream.SIMULATED_ROLLOUTS)
    least, most = _ANSWERS
    answers = random.integers(least, most + 1, -(-count // least))
    prompts = random.normal(size=len(answers)).repeat(answers)[:count]
    order = (prompts + random.normal(size=count)).argsort(kind="stable")
    levels = np.empty(count)
    levels[order] = (np.arange(count) + random.random(count)) / count
    return DISTRIBUTIONS[name].lengths(levels)


def evenstep(
    lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, cost: Cost
) -> Placed:
    plan = plan_rebalance(lengths, ranks=ranks, max_tokens=max_tokens, packed=packed, cost=cost)
    return plan.rank, plan.micro_batch


def verl(lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, cost: Cost) -> Placed:
    """As verl divides a batch, by Karmarkar-Karp twice; with `cost` for its own estimate of the
    work.

    First ranks get equally many sequences of about the same total cost. Then each rank has as many
    micro-batches as its tokens fill, and all have as many as the one with most; its sequences go to
    these so that they cost about the same. Nothing keeps one of them within `max_tokens`.

    Padded micro-batches are runs of a rank's sequences in order of length, within `max_tokens`;
    ranks with fewer halve those of most sequences.
    """
    costs = whole_costs(cost(GroupShapes.of_equals(1, lengths), packed=True))
    own = _equal_counts(costs, ranks)
    rank = np.empty(len(lengths), np.int64)
    rank[own] = np.arange(ranks)[:, None]
    if not packed:
        own = np.take_along_axis(own, (-lengths[own]).argsort(axis=1, kind="stable"), axis=1)
        return rank, _halved(_cut_in_order(lengths, own, max_tokens, packed), own)
    count = int((-(-sums(lengths, rank, ranks) // max_tokens)).max())
    falling = np.take_along_axis(own, (-costs[own]).argsort(axis=1, kind="stable"), axis=1)
    ends = np.arange(1, ranks + 1) * own.shape[1]
    return rank, karmarkar_karp(costs, count, falling.ravel(), ends=ends)


def plain(lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, cost: Cost) -> Placed:
    """Sequences in order: the first ones to rank 0, and so on, and a new micro-batch whenever the
    next one does not fit."""
    own = np.arange(len(lengths)).reshape(ranks, -1)
    return np.arange(ranks).repeat(own.shape[1]), _cut_in_order(lengths, own, max_tokens, packed)


def _cut_in_order(
    lengths: Int64Array, own: Int64Array, max_tokens: int, packed: bool
) -> Int64Array:
    """[sequences] the micro-batch of each.

    Args:
        own: [ranks, sequences of a rank] in the order in which they are taken.
    """
    step = np.empty(own.size, np.int64)
    for members in own:
        number = held = count = longest = 0
        for length, member in zip(lengths[members].tolist(), members.tolist()):
            held, count, longest = held + length, count + 1, max(longest, length)
            if (held if packed else count * longest) > max_tokens:
                number, held, count, longest = number + 1, length, 1, length
            step[member] = number
    return step


def _halved(step: Int64Array, own: Int64Array) -> Int64Array:
    """[sequences] the micro-batch of each, after every rank has as many as the one with most."""
    step = step.copy()
    count = int(step.max()) + 1
    for members in own:
        for number in range(int(step[members].max()) + 1, count):
            sizes = np.bincount(step[members])
            largest = int(sizes.argmax())
            step[members[step[members] == largest][sizes[largest] // 2 :]] = number
    return step


def _equal_counts(costs: Int64Array, ranks: int) -> Int64Array:
    """[ranks, sequences of a rank] equally many on each, by differencing: as `karmarkar_karp`, but
    partial partitions begin with a sequence for each rank, those of about the same cost."""
    order = largest_first(costs).reshape(-1, ranks)
    parts = {number: (costs[row], row[:, None]) for number, row in enumerate(order)}
    # Least even first.
    queue = [(int(loads[-1] - loads[0]), number) for number, (loads, _) in parts.items()]
    heapify(queue)
    while len(queue) > 1:
        loads, members = parts.pop(heappop(queue)[1])
        number = heappop(queue)[1]
        other, others = parts.pop(number)
        loads, members = loads + other[::-1], np.hstack([members, others[::-1]])
        falling = largest_first(loads)
        loads, members = loads[falling], members[falling]
        parts[number] = loads, members
        heappush(queue, (int(loads[-1] - loads[0]), number))
    return parts[queue[0][1]][1]


WAYS: dict[str, Callable[..., Placed]] = {"evenstep": evenstep, "verl": verl, "plain split": plain}


def compared(
    updates: Sequence[Int64Array], *, ranks: int, max_tokens: int, packed: bool, cost: Cost
) -> dict[str, dict[str, float]]:
    """Figures of every way; and of the least imbalance that is possible, where it is known."""
    options: dict[str, Any] = {"max_tokens": max_tokens, "packed": packed, "cost": cost}
    found = {}
    for name, plan in WAYS.items():
        slowest = mean = micro_batches = 0.0
        started = time.thread_time()
        plans = [plan(lengths, ranks=ranks, **options) for lengths in updates]
        seconds = time.thread_time() - started
        for lengths, (rank, step) in zip(updates, plans):
            count = int(step.max()) + 1
            costs = np.zeros(ranks * count)
            label = rank * count + step
            costs[np.unique(label)] = cost(Groups.by_label(label).shapes(lengths), packed=packed)
            slowest += float(costs.reshape(ranks, count).max(axis=0).sum())
            mean += float(costs.sum()) / ranks
            micro_batches += count / len(updates)
        found[name] = {"imbalance": slowest / mean, "micro-batches": micro_batches}
        found[name]["planning ms"] = 1e3 * seconds / len(updates)
    if packed:
        alone = [cost(GroupShapes.of_equals(1, lengths), packed=True) for lengths in updates]
        least = [
            least_imbalance(each, lengths, ranks=ranks, max_tokens=max_tokens)
            for each, lengths in zip(alone, updates)
        ]
        weights = [each.sum() for each in alone]
        found["least possible"] = {"imbalance": float(np.average(least, weights=weights))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--lengths", default="rollouts", help="as `evenstep simulate` takes them")
    add("--ranks", type=int, default=64)
    add("--max-tokens", type=int, default=32_768, help="of a micro-batch")
    add("--padded", action="store_true", help="micro-batches are padded to their longest sequence")
    add("--samples", type=int, default=32, help="sequences of each rank in an update")
    add("--steps", type=int, default=5, help="updates, at most")
    add("--cost", default="usual", help="as `evenstep simulate` takes it")
    add("--seed", type=int, default=0)
    given = parser.parse_args()
    updates = draw_updates(
        given.lengths,
        ranks=given.ranks,
        samples=given.samples,
        steps=given.steps,
        seed=given.seed,
    )
    found = compared(
        updates,
        ranks=given.ranks,
        max_tokens=given.max_tokens,
        packed=not given.padded,
        cost=parse_cost(given.cost),
    )
    columns = {"imbalance": ".4f", "micro-batches": ".1f", "planning ms": ".1f"}
    rows = [
        [name, *(f"{own[key]:{form}}" if key in own else "" for key, form in columns.items())]
        for name, own in found.items()
    ]
    print(text_table(["", *columns], rows))


if __name__ == "__main__":
    main()
