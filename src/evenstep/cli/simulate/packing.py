"""``evenstep simulate workload-packing``: a stream of documents, packed step by step."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from evenstep.cli.options import LINEAR, MOST_RANKS, Json, LengthsName, Linear, Seed
from evenstep.cli.output import print_figures, print_json
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.lengths import MAX_LENGTH
from evenstep.plan.packing import (
    DocumentCost,
    SteadyOptions,
    WorkloadPacking,
    auto_thresholds,
    plan_step,
)
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.tools.simulate import DISTRIBUTIONS, load_lengths
from evenstep.tools.simulate.packing_result import makespan_ratio, measure
from evenstep.tools.simulate.packing_run import ArrivingDocuments, run_planner

_DOCUMENTS = 60_000
"""Drawn from a distribution by default: some 500 steps of 128K tokens and four micro-batches."""
_QUEUES = 2
_ROWS = {
    "steps": ("iterations", ","),
    "imbalance, mean of largest x micro-batches / total": ("imbalance", ".4f"),
    "imbalance, weighted by time": ("imbalance_time_weighted", ".4f"),
    "1F1B makespan over balanced": ("makespan_ratio", ".4f"),
    "the same, micro-batches in arrival order": ("makespan_ratio_unordered", ".4f"),
    "stages of the pipeline": ("stages", ","),
    "delay of a token, steps, mean": ("token_delay_mean", ".2f"),
    "delay of a token, steps, longest": ("token_delay_max", ","),
    "tokens per step": ("tokens_per_step", ",.0f"),
    "variation of tokens per step": ("tokens_per_step_cv", ".2%"),
    "tokens of the longest micro-batch": ("max_tokens", ","),
    "planning per step, ms": ("plan_ms", ".2f"),
    "documents in": ("documents_in", ","),
    "documents out": ("documents_out", ","),
    "documents waiting": ("documents_waiting", ","),
}


def command(
    *,
    lengths: LengthsName,
    context: Annotated[
        int,
        typer.Option(
            help="Context window: the tokens of a micro-batch, on average.", max=MAX_LENGTH
        ),
    ] = 131_072,
    micro_batches: Annotated[
        int, typer.Option(help="Micro-batches of a step.", max=MOST_RANKS)
    ] = 4,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that no micro-batch exceeds.", show_default="1.25 x the context window"
        ),
    ] = None,
    queues: Annotated[
        int | None,
        typer.Option(
            help="Queues in which outlier documents wait for others of similar length.",
            max=1024,
            show_default=f"{_QUEUES}, or 0 with --steady",
        ),
    ] = None,
    steady: Annotated[
        bool, typer.Option("--steady", help="Use no queues, and keep the tokens of a step steady.")
    ] = False,
    max_delay: Annotated[
        int | None,
        typer.Option(
            help="Steps after which a document is trained on in any case.",
            show_default="64 with queues, 16 without",
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Keep documents whole that original packing would cut."),
    ] = False,
    linear: Linear = LINEAR,
    stages: Annotated[int, typer.Option(help="Stages of the pipeline.", max=1024)] = 4,
    end: Annotated[
        str,
        typer.Option(help="At the end of the data, drain the documents that wait, or carry them."),
    ] = "drain",
    samples: Annotated[
        int | None,
        typer.Option(
            help="Documents, at most.",
            show_default=f"the whole file; {_DOCUMENTS:,} from a distribution",
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Documents in micro-batches of equal cost.

    Packs a stream of pretraining documents on one rank, as WLB-LLM does. Fractions in the JSON
    object are fractions, not percent.

    \b
    Examples:
      evenstep simulate workload-packing --lengths pretrain-128k --micro-batches 4 --queues 2
      evenstep simulate workload-packing --lengths lengths.npy --micro-batches 16 --steady --json
    """
    check_at_least(1, samples=samples)
    check_at_least(0, seed=seed, queues=queues)
    if steady and queues:
        raise ConfigurationError(f"--steady and --queues {queues} exclude each other; give one")
    if samples is None and lengths in DISTRIBUTIONS:
        samples = _DOCUMENTS
    cost = DocumentCost(linear=linear)
    arrivals = ArrivingDocuments.of(
        load_lengths(lengths, samples=samples, seed=seed),
        context=context,
        micro_batches=micro_batches,
        whole=whole,
    )
    thresholds: tuple[int, ...] = ()
    if queues != 0 and not steady:
        thresholds = auto_thresholds(
            arrivals.pieces.lengths, context=context, queues=queues or _QUEUES, cost=cost
        )
    options = WorkloadPacking(
        context,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
        thresholds=thresholds,
        max_delay=max_delay,
        cost=cost,
    ).planning
    trained = run_planner(partial(plan_step, options), arrivals, end=end)
    result = measure(arrivals, trained, cost)
    schedule = PipelineSchedule(stages=stages)
    figures = {
        "policy": "workload-packing",
        **result.as_dict(),
        "makespan_ratio": makespan_ratio(result.costs, schedule),
        "makespan_ratio_unordered": makespan_ratio(result.costs, schedule, ordered=False),
        "context": context,
        "micro_batches": micro_batches,
        "thresholds": list(options.thresholds),
        "steady": isinstance(options, SteadyOptions),
        "max_delay": options.max_delay,
        "whole_documents": whole,
        "linear": linear,
        "stages": stages,
        "end": end,
    }
    if json:
        print_json({**figures, "lengths": lengths, "seed": seed})
    else:
        print_figures(f"workload-packing over {lengths}", figures, _ROWS)
