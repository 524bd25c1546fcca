"""What ``evenstep simulate workload-packing`` runs: a stream of documents, packed step by step."""

from __future__ import annotations

from functools import partial
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.plan.packing import (
    DocumentCost,
    SteadyOptions,
    WorkloadPacking,
    auto_thresholds,
    plan_iteration,
)
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.tools.simulate.packing_result import makespan_ratio, measure
from evenstep.tools.simulate.packing_run import ArrivingDocuments, run_planner

__all__ = ["PACKING_DOCUMENTS", "packing_rows", "simulate_packing"]


PACKING_DOCUMENTS = 60_000
"""Drawn from a distribution by default: some 500 steps of 128K tokens and four micro-batches."""


def simulate_packing(
    lengths: Int64Array,
    *,
    context: int,
    micro_batches: int,
    queues: int,
    max_tokens: int | None,
    max_delay: int | None,
    steady: bool,
    whole: bool,
    linear: int,
    stages: int,
    end: str,
) -> dict[str, Any]:
    """The figures by name, and the settings that they are of."""
    workload = DocumentCost(linear=linear)
    arrivals = ArrivingDocuments.of(
        lengths, context=context, micro_batches=micro_batches, whole=whole
    )
    thresholds: tuple[int, ...] = ()
    if queues and not steady:
        thresholds = auto_thresholds(
            arrivals.pieces.lengths, context=context, queues=queues, workload=workload
        )
    options = WorkloadPacking(
        context,
        micro_batches=micro_batches,
        max_tokens=max_tokens,
        thresholds=thresholds,
        max_delay=max_delay,
        cost=workload,
    ).planning
    trained, _ = run_planner(partial(plan_iteration, options), arrivals, end=end)
    result = measure(arrivals, trained, workload)
    schedule = PipelineSchedule(stages=stages)
    return {
        "policy": "workload-packing",
        **result.as_dict(),
        "makespan_ratio": makespan_ratio(result.works, schedule),
        "makespan_ratio_unordered": makespan_ratio(result.works, schedule, ordered=False),
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


def packing_rows(figures: dict[str, Any]) -> dict[str, str]:
    """The figures as text, for a table."""
    return {
        "iterations": f"{figures['iterations']:,}",
        "imbalance, mean of largest x micro-batches / total": f"{figures['imbalance']:.4f}",
        "imbalance, weighted by time": f"{figures['imbalance_time_weighted']:.4f}",
        f"1F1B makespan over balanced, {figures['stages']} stages": (
            f"{figures['makespan_ratio']:.4f}"
        ),
        "the same, micro-batches as they come": f"{figures['makespan_ratio_unordered']:.4f}",
        "delay of a token, mean": f"{figures['token_delay_mean']:.2f} iterations",
        "delay of a token, longest": f"{figures['token_delay_max']:,} iterations",
        "tokens per iteration": f"{figures['tokens_per_step']:,.0f}",
        "their variation": f"{figures['tokens_per_step_cv']:.2%}",
        "longest micro-batch": f"{figures['max_tokens']:,} tokens",
        "planning per iteration": f"{figures['plan_ms']:.2f} ms",
        "documents in": f"{figures['documents_in']:,}",
        "documents out": f"{figures['documents_out']:,}",
        "documents waiting": f"{figures['documents_waiting']:,}",
    }
