"""The strategies that the text demo compares, and the weights that both draw by.

Planners and loaders run this, so it needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.mixture import FeedbackSchedule, WarmUp
from evenstep_demos.service.encode import tokens_of
from evenstep_demos.service.options import CONTEXT, DATA, ServiceDemoOptions
from evenstep_demos.service.sizes import gpt_cost
from evenstep_demos.service.stored import StoredSources

_COST = gpt_cost()
_BUFFER = 16  # samples prepared ahead of each source: there are many sources
_PUSH = 0.5


def vanilla(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals samples as they come, equally many to each micro-batch."""
    return graph.mix().distribute("DP").cost(_COST).plan()


def balanced(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals the same samples by their cost."""
    return graph.mix().distribute("DP").cost(_COST).balance("karmarkar_karp").plan()


TEXT_RUNS = {"vanilla": vanilla, "balanced": balanced}
"""By the name of each run, in the order in which they are made."""


def follow_losses(weights: Mapping[str, float], signals: Mapping[str, Any]) -> dict[str, float]:
    """Sources with a loss above the mean get more weight, the others less. Those that had no sample
    in the step keep theirs."""
    losses: Mapping[str, float] = signals["loss_by_source"]
    mean = math.fsum(losses.values()) / len(losses)
    return {
        name: weight * math.exp(_PUSH * (losses.get(name, mean) - mean))
        for name, weight in weights.items()
    }


def text_job(stored: StoredSources, options: ServiceDemoOptions, run: str) -> es.Job:
    """The job of a run; runs differ only in the strategy."""
    proportional = {name: float(count) for name, count in stored.samples.items()}
    tempered = {name: math.sqrt(count) for name, count in stored.samples.items()}
    return es.Job(
        sources=stored.sources(tokens_of),
        mesh=es.Mesh(DP=DATA, CP=CONTEXT),
        strategy=TEXT_RUNS[run],
        draws=es.DrawOptions(
            schedule=FeedbackSchedule(initial=tempered, function=follow_losses)
            if options.live
            else WarmUp(start=proportional, end=tempered, steps=max(options.step_count // 2, 1)),
            samples_per_step=options.sample_count,
        ),
        micro_batches=options.micro_batches,
        max_tokens=options.max_tokens,
        seed=options.seed,
        measures=es.MeasureOptions(loss_reduction="sum"),
        memory=es.MemoryOptions(buffer_size=_BUFFER, plans_kept=options.step_count + 8),
    )
