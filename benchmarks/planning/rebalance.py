"""Sequences of updates to ranks and micro-batches by `plan_rebalance`, compared with other ways.

Every plan is measured alike. Ranks wait for each other in every micro-batch, so an update takes, in
each, as long as the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.planning.rebalance_baselines import (
    differencing_split,
    measured,
    plain_split,
)
from evenstep.arrays import Int64Array
from evenstep.cli.shared_options import parse_cost
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import ConfigurationError
from evenstep.plan.groups import Groups
from evenstep.plan.rebalance import (
    Rebalancing,
    fewest_micro_batches,
    least_imbalance,
    plan_rebalance,
)
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least
from evenstep.tools.report import text_table
from evenstep.tools.simulate.distributions import DISTRIBUTIONS
from evenstep.tools.simulate.lengths import load_lengths

_ANSWERS = (8, 16)
"""Answers to a prompt, at least and at most."""


def draw_updates(
    spec: str, *, ranks: int, samples: int, steps: int, seed: int = 0
) -> list[Int64Array]:
    """Draws the sequences of each update, in the order in which they were generated.

    Args:
        spec: lengths, as `load_lengths` takes it. Those of a file keep its order, and make as many
            updates as it holds, or one of fewer sequences. Those drawn from a distribution are
            answers to prompts: 8 to 16 that follow each other are alike.
        samples: sequences of each rank.
        steps: updates, at most.

    Returns:
        [sequences] int64 lengths of each update, as many as `ranks` divides.

    Raises:
        ConfigurationError: as `load_lengths`; or the file has fewer sequences than ranks.
    """
    check_at_least(1, ranks=ranks, samples=samples, steps=steps)
    if spec in DISTRIBUTIONS:
        lengths = _answers(spec, ranks * samples * steps, seed)
    else:
        lengths = load_lengths(spec)
    if len(lengths) < ranks:
        raise ConfigurationError(
            f"{spec} holds {len(lengths):,} sequences, fewer than ranks={ranks}; give a file with "
            "more, or fewer ranks"
        )
    each = ranks * min(samples, len(lengths) // ranks)
    count = min(steps, len(lengths) // each)
    return np.split(lengths[: each * count], count)


def run_rebalance(
    updates: Sequence[Int64Array],
    *,
    ranks: int,
    max_tokens: int,
    packed: bool,
    cost: Cost,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Any], dict[str, list[Rebalancing]]]:
    """Plans every update in each way, and measures all plans.

    Args:
        updates: [sequences] int64 lengths of each, as many as `ranks` divides.
        packed, cost: as for `plan_rebalance`.
        progress: called with (done, total) updates.

    Returns:
        Figures of evenstep by name, and under ``verl`` and ``plain`` those of the other ways; and
        by these names, and ``evenstep``, the plans of the updates.

    Raises:
        SampleError: a sequence has more than `max_tokens`.
    """
    ways: dict[str, Callable[..., Rebalancing]] = {
        "evenstep": plan_rebalance,
        "verl": differencing_split,
        "plain": plain_split,
    }
    plans: dict[str, list[Rebalancing]] = {name: [] for name in ways}
    milliseconds: dict[str, list[float]] = {name: [] for name in ways}
    options: dict[str, Any] = {
        "ranks": ranks,
        "max_tokens": max_tokens,
        "packed": packed,
        "cost": cost,
    }
    plan_rebalance(updates[0], **options)  # a first call takes longer
    for done, lengths in enumerate(updates):
        for name, plan in ways.items():
            started = time.thread_time()
            made = plan(lengths, **options)
            milliseconds[name].append((time.thread_time() - started) * 1e3)
            plans[name].append(measured(made.rank, made.micro_batch, lengths, ranks, packed, cost))
        if progress is not None:
            progress(done + 1, len(updates))
    figures = {name: _figures(plans[name], updates, max_tokens, packed) for name in ways}
    taken = {name: sum(plan.time for plan in each) for name, each in plans.items()}
    for name, own in figures.items():
        own["plan_ms"] = float(np.median(milliseconds[name]))
        own["time_over_evenstep"] = taken[name] / taken["evenstep"]
    found = figures.pop("evenstep")
    limits = {"ranks": ranks, "max_tokens": max_tokens}
    fewest = [fewest_micro_batches(lengths, packed=packed, **limits) for lengths in updates]
    found["micro_batches_least"] = float(np.mean(fewest))
    if packed:
        alone = [cost(GroupShapes.of_equals(1, lengths), packed=True) for lengths in updates]
        least = [least_imbalance(each, n, **limits) for each, n in zip(alone, updates)]
        found["imbalance_least"] = float(np.average(least, weights=[each.sum() for each in alone]))
    return {**found, **figures}, plans


def _figures(
    plans: Sequence[Rebalancing], updates: Sequence[Int64Array], max_tokens: int, packed: bool
) -> dict[str, Any]:
    steps = sum(plan.micro_batches for plan in plans)
    slowest = sum(plan.time for plan in plans)
    slowest_rank = sum(float(plan.costs.sum(axis=1).max()) for plan in plans)
    mean = sum(float(plan.costs.sum()) / plan.ranks for plan in plans)
    shapes = [
        Groups.by_label(plan.rank * plan.micro_batches + plan.micro_batch).shapes(lengths)
        for plan, lengths in zip(plans, updates)
    ]
    most = max(int((each.tokens if packed else each.padded).max()) for each in shapes)
    tokens = sum(int(lengths.sum()) for lengths in updates)
    return {
        # Sum over micro-batches of the slowest rank's cost, over the sum of the mean.
        "imbalance": slowest / mean,
        # The same for whole updates, as if ranks waited for each other at their end alone.
        "rank_imbalance": slowest_rank / mean,
        "micro_batches": steps / len(plans),
        "fill": tokens / (plans[0].ranks * steps * max_tokens),
        # Over 1 where a micro-batch exceeds `max_tokens`.
        "fullest": most / max_tokens,
    }


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


def _table(figures: dict[str, Any]) -> str:
    columns = {
        "time": ("time_over_evenstep", ".3f"),
        "imbalance": ("imbalance", ".4f"),
        "of ranks": ("rank_imbalance", ".4f"),
        "micro-batches": ("micro_batches", ".1f"),
        "fill": ("fill", ".1%"),
        "fullest": ("fullest", ".1%"),
        "planning ms": ("plan_ms", ".1f"),
    }
    rows = {"evenstep": figures, "as verl does": figures["verl"], "plain split": figures["plain"]}
    cells = [
        [name, *(f"{each[key]:{form}}" for key, form in columns.values())]
        for name, each in rows.items()
    ]
    return text_table(["", *columns], cells)


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
    add("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    updates = draw_updates(
        given.lengths,
        ranks=given.ranks,
        samples=given.samples,
        steps=given.steps,
        seed=given.seed,
    )
    found, _ = run_rebalance(
        updates,
        ranks=given.ranks,
        max_tokens=given.max_tokens,
        packed=not given.padded,
        cost=parse_cost(given.cost),
    )
    print(json.dumps({**vars(given), **found}) if given.json else _table(found))


if __name__ == "__main__":
    main()
