"""Dynamic context parallelism over steps of documents, compared with fixed groups and with ranks
chosen by length.

Every plan is measured alike: each group's documents are cut over its ranks, and a rank takes the
linear cost of its tokens, the tiles that its attention computes, and the part of the exchange that
its attention does not hide. A micro-batch takes as long as its slowest rank.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.planning.dynamic_context_baselines import (
    fixed_groups,
    powers_of_two_by_length,
)
from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    least_alone,
    least_step,
    plan_dynamic_context,
)
from evenstep.plan.packing import cut_long
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.sharding import METHODS, shard
from evenstep.plan.sharding.attention_tiles import TILE
from evenstep.tools.report import text_table
from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.lengths import load_lengths


def draw_steps(
    spec: str, options: DynamicContext, *, micro_batches: int, steps: int, seed: int = 0
) -> list[Int64Array]:
    """Draws the documents of each step, whose tokens would fill about `micro_batches`
    micro-batches.

    Args:
        spec: lengths of documents, as `load_lengths` takes it. Documents of a file are drawn
            without repetition while there are enough. Those that do not fit on all ranks are
            split.

    Returns:
        [documents] int64 lengths of each step.
    """
    check_at_least(1, micro_batches=micro_batches, steps=steps)
    wanted = micro_batches * options.capacity
    if spec in DISTRIBUTIONS:
        count = max(round(wanted / DISTRIBUTIONS[spec].mean), 1)
        lengths = sample_lengths(spec, count * steps, seed)
    else:
        known = load_lengths(spec, seed=seed)
        count = max(round(wanted / float(known.mean())), 1)
        draw = generator(seed, RandomStream.SIMULATED_SHARDS)
        times = -(-count * steps // len(known))
        order = np.concatenate([draw.permutation(len(known)) for _ in range(times)])
        lengths = known[order[: count * steps]]
    return [cut_long(each, options.capacity, "split").lengths for each in np.split(lengths, steps)]


def run_dynamic_context(
    steps: Sequence[Int64Array],
    options: DynamicContext,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Plans every step with dynamic groups and in the other ways, and measures all plans.

    Args:
        steps: [documents] int64 lengths of each.
        progress: called with (done, total) steps.

    Returns:
        Figures of dynamic groups by name; under ``by_length`` and ``fixed`` those of the other
        ways, of the fixed groups on which all documents fit; and how much longer the best of these
        take.

    Raises:
        ConfigurationError: there are no steps.
        SampleError: as `plan_dynamic_context`.
    """
    if not len(steps):
        raise ConfigurationError("there are no steps to plan; give at least one")
    plan_dynamic_context(steps[0], options)  # a first call takes longer
    dynamic, by_length = [], []
    fixed: dict[int, list[MeasuredPlan]] = {}
    plan_ms, bound = [], 0.0
    for done, lengths in enumerate(steps):
        started = time.thread_time()
        plan = plan_dynamic_context(lengths, options)
        plan_ms.append((time.thread_time() - started) * 1e3)
        plan.check(lengths, options.tokens_per_rank)
        bound += least_step(lengths, options)
        dynamic.append(measure_plan(plan, lengths, options))
        other = powers_of_two_by_length(lengths, options)
        by_length.append(measure_plan(other, lengths, options, methods=("per-document",)))
        for power in range(options.ranks.bit_length()):
            fixed_plan = fixed_groups(lengths, 1 << power, options)
            if fixed_plan is not None:
                measured = measure_plan(fixed_plan, lengths, options)
                fixed.setdefault(1 << power, []).append(measured)
        if progress is not None:
            progress(done + 1, len(steps))
    own, others = _figures(dynamic, bound), _figures(by_length, bound)
    groups = {
        str(size): _figures(each, bound) for size, each in fixed.items() if len(each) == len(steps)
    }
    own_time = own["step_time_over_bound"]
    found = {
        "steps": len(steps),
        **own,
        "plan_ms": float(np.median(plan_ms)),
        "plan_ms_max": max(plan_ms),
        "fixed": groups,
        "by_length": others,
        "speedup_over_by_length": others["step_time_over_bound"] / own_time,
    }
    if groups:
        best = min(groups, key=lambda size: groups[size]["step_time_over_bound"])
        found["best_fixed"] = int(best)
        found["speedup_over_best_fixed"] = groups[best]["step_time_over_bound"] / own_time
    return found


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """One step by one plan, in units of cost."""

    groups: Float64Array
    """[groups] time of the slowest rank of each."""
    compute: Float64Array
    """[micro-batches] what the slowest rank computes, in whole tiles."""
    mean: Float64Array
    """[micro-batches] what ranks compute on average."""
    time: Float64Array
    """[micro-batches] what the slowest rank takes, with the exchange that it waits for."""
    least: Float64Array
    """[micro-batches] what any division of the ranks takes at least: the mean, or the longest
    document by itself on the ranks that suit it best."""
    ranks: Int64Array
    """[documents] ranks of each document's group."""
    tokens: float
    """Tokens of a rank in all micro-batches, on average."""
    most_tokens: int
    """Tokens of the rank with most, in any micro-batch."""


def measure_plan(
    plan: ContextPlan,
    lengths: Int64Array,
    options: DynamicContext,
    *,
    methods: Sequence[str] = METHODS,
) -> MeasuredPlan:
    """Measures what a step takes by a plan.

    Args:
        methods: those that a group's documents may be cut by, as for `shard`.
    """
    tokens = plan.tokens(lengths)
    attention = options.attention(lengths)
    until = np.append(0, attention[plan.documents].cumsum())
    whole = np.diff(until[plan.offsets])  # [groups] attention if all documents are on one rank
    work = (options.cost.linear * tokens + whole).astype(np.float64)  # of the slowest rank
    total, waiting = work.copy(), np.zeros(len(plan))
    per_tile = 2 * TILE * TILE * options.cost.quadratic
    for group in np.flatnonzero((plan.size > 1) & (tokens > 0)).tolist():
        size = int(plan.size[group])
        sharding = shard(lengths[plan.group(group)], size, methods=methods, even=len(methods) > 1)
        tiles = per_tile * sharding.tiles()
        ranks = options.cost.linear * sharding.tokens + tiles
        slowest = int(ranks.argmax())
        work[group], total[group] = ranks[slowest], ranks.sum()
        received = options.exchange.of(size, int(tokens[group]))
        waiting[group] = max(received - int(tiles[slowest]), 0)
    mean = np.bincount(plan.micro_batch, total, plan.micro_batches) / plan.ranks
    sizes = np.diff(plan.offsets)
    longest = np.zeros(plan.micro_batches, np.int64)
    np.maximum.at(longest, plan.micro_batch.repeat(sizes), lengths[plan.documents])
    alone = [least_alone(each, options) if each else 0.0 for each in longest.tolist()]
    return MeasuredPlan(
        groups=work + waiting,
        compute=_most(plan, work),
        mean=mean,
        time=_most(plan, work + waiting),
        least=np.maximum(mean, alone),
        ranks=plan.size.repeat(sizes),
        tokens=int(lengths.sum()) / plan.ranks,
        most_tokens=int((-(-tokens // plan.size)).max(initial=0)),
    )


def _most(plan: ContextPlan, values: Float64Array) -> Float64Array:
    """[micro-batches] the largest value of the groups of each."""
    most = np.zeros(plan.micro_batches)
    np.maximum.at(most, plan.micro_batch, values)
    return most


def _figures(steps: Sequence[MeasuredPlan], bound: float) -> dict[str, Any]:
    """
    Args:
        bound: `least_step` of all steps together.
    """
    compute, mean, taken, least, ranks = (
        np.concatenate([getattr(each, name) for each in steps])
        for name in ("compute", "mean", "time", "least", "ranks")
    )
    busy = mean > 0
    over = compute[busy] / mean[busy]
    return {
        # Sum over micro-batches of the slowest rank's work, over the sum of the mean.
        "imbalance": float(compute.sum() / mean.sum()),
        "imbalance_worst": float(over.max()),
        # The least possible in that micro-batch, which waits for its longest document.
        "imbalance_worst_bound": float((least[busy] / mean[busy])[over.argmax()]),
        "ranks_per_document_mean": float(ranks.mean()),
        "ranks_per_document_max": int(ranks.max(initial=1)),
        # Time that ranks wait for exchange, where attention does not hide it.
        "communication_share": float(1 - compute.sum() / taken.sum()),
        "tokens_per_rank_mean": sum(each.tokens for each in steps) / len(taken),
        "tokens_per_rank_max": max(each.most_tokens for each in steps),
        "micro_batches": len(taken) / len(steps),
        "step_time_over_bound": float(taken.sum()) / bound,
    }


def _table(figures: dict[str, Any]) -> str:
    rows = {"dynamic": figures, "by length alone": figures["by_length"]}
    rows |= {f"groups of {size}": each for size, each in figures["fixed"].items()}
    columns = {
        "time over bound": ("step_time_over_bound", ".3f"),
        "imbalance": ("imbalance", ".4f"),
        "worst": ("imbalance_worst", ".3f"),
        "waiting for exchange": ("communication_share", ".1%"),
        "ranks of a document": ("ranks_per_document_mean", ".1f"),
        "micro-batches": ("micro_batches", ".1f"),
    }
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
    add("--lengths", default="pretrain-128k", help="as `evenstep simulate` takes them")
    add("--ranks", type=int, default=64, help="data-parallel times context-parallel")
    add("--tokens-per-rank", type=int, default=16_384, help="in a micro-batch, at most")
    add("--micro-batches", type=int, default=4, help="full ones that a step would make")
    add("--powers-of-two", action="store_true", help="groups have 1, 2, 4, ... ranks")
    add("--steps", type=int, default=4)
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    options = DynamicContext(
        ranks=given.ranks,
        tokens_per_rank=given.tokens_per_rank,
        powers_of_two=given.powers_of_two,
    )
    drawn = draw_steps(
        given.lengths,
        options,
        micro_batches=given.micro_batches,
        steps=given.steps,
        seed=given.seed,
    )
    found = run_dynamic_context(drawn, options)
    print(json.dumps({**vars(given), **found}) if given.json else _table(found))


if __name__ == "__main__":
    main()
