"""Dynamic context parallelism over steps of documents, beside fixed groups and ranks by length.

Every plan is measured alike: each group's documents are cut over its ranks, and a rank takes the
linear cost of its tokens, the tiles that its attention computes, and what of the exchange its
attention does not hide. A micro-batch takes as long as its slowest rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
from evenstep.tools.simulate.distributions import DISTRIBUTIONS, sample_lengths
from evenstep.tools.simulate.dynamic_context_baselines import (
    fixed_groups,
    powers_of_two_by_length,
)
from evenstep.tools.simulate.dynamic_context_result import DynamicContextResult, PlanFigures
from evenstep.tools.simulate.lengths import load_lengths


def draw_steps(
    spec: str, options: DynamicContext, *, micro_batches: int, steps: int, seed: int = 0
) -> list[Int64Array]:
    """Documents of each step, whose tokens would fill about `micro_batches` micro-batches.

    Args:
        spec: lengths of documents, as `load_lengths` takes it. Those of a file are drawn from it,
            each once while there are enough. Documents that do not fit on all ranks are split.

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
    baselines: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> DynamicContextResult:
    """Plans every step dynamically and, with `baselines`, in the other ways, and measures all.

    Args:
        steps: [documents] int64 lengths of each.
        progress: called with (done, total) steps.

    Raises:
        ConfigurationError: there are no steps.
        SampleError: as `plan_dynamic_context`.
    """
    if not len(steps):
        raise ConfigurationError("there are no steps to plan; give at least one")
    plan_dynamic_context(steps[0], options)  # pays the costs of a first call
    dynamic, by_length = [], []
    fixed: dict[int, list[PlanFigures]] = {}
    plan_ms, bounds = [], []
    degrees = [1 << power for power in range(options.ranks.bit_length())] if baselines else []
    for done, lengths in enumerate(steps):
        begun = time.thread_time()
        plan = plan_dynamic_context(lengths, options)
        plan_ms.append((time.thread_time() - begun) * 1e3)
        plan.check(lengths, options.tokens_per_rank)
        bounds.append(least_step(lengths, options))
        dynamic.append(measure_plan(plan, lengths, options).figures)
        if baselines:
            other = powers_of_two_by_length(lengths, options)
            by_length.append(
                measure_plan(other, lengths, options, methods=("per-document",)).figures
            )
        for degree in degrees:
            fixed_plan = fixed_groups(lengths, degree, options)
            if fixed_plan is not None:
                figures = measure_plan(fixed_plan, lengths, options).figures
                fixed.setdefault(degree, []).append(figures)
        if progress is not None:
            progress(done + 1, len(steps))
    return DynamicContextResult(
        dynamic=dynamic,
        by_length=by_length,
        fixed={degree: each for degree, each in fixed.items() if len(each) == len(steps)},
        plan_ms=np.array(plan_ms),
        bounds=np.array(bounds),
    )


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan:
    """A plan, and the time of each of its groups."""

    figures: PlanFigures
    time: Float64Array
    """[groups] time of the slowest rank of each, in units of cost."""


def measure_plan(
    plan: ContextPlan,
    lengths: Int64Array,
    options: DynamicContext,
    *,
    methods: Sequence[str] = METHODS,
) -> MeasuredPlan:
    """What a step takes by a plan.

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
    most, longest = np.zeros((2, plan.micro_batches))
    np.maximum.at(most, plan.micro_batch, work)
    np.maximum.at(longest, plan.micro_batch, work + waiting)
    mean = np.bincount(plan.micro_batch, total, plan.micro_batches) / plan.ranks
    ranks_of = plan.size.repeat(np.diff(plan.offsets))
    at = plan.micro_batch.repeat(np.diff(plan.offsets))  # [documents]
    longest_document = np.zeros(plan.micro_batches, np.int64)
    np.maximum.at(longest_document, at, lengths[plan.documents])
    alone = [least_alone(each, options) if each else 0.0 for each in longest_document.tolist()]
    figures = PlanFigures(
        compute=most,
        mean=mean,
        time=longest,
        least=np.maximum(mean, alone),
        documents=len(lengths),
        ranks_of_documents=int(ranks_of.sum()),
        most_ranks=int(ranks_of.max(initial=1)),
        tokens=int(lengths.sum()) / plan.ranks,
        most_tokens=int((-(-tokens // plan.size)).max(initial=0)),
    )
    return MeasuredPlan(figures=figures, time=work + waiting)
