"""`StrategySteps`: the steps that a strategy makes of a mixture, each of what it draws in it.

The plan that a strategy returns must be one of this step's samples, each once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError, SampleError
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.job.job import Job
from evenstep.service.planner.draws import Draws
from evenstep.service.planner.policy_steps import Windows
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.plan_builder import TooFewSamplesError

_MAX_CARRIED = 2  # steps' worth of tokens that may be carried


class StrategySteps:
    """See the module docstring."""

    def __init__(self, job: Job, draws: Draws, windows: Windows) -> None:
        """
        Args:
            job: with a strategy.
            windows: to begin with.
        """
        self._job, self._draws = job, draws
        self.windows = windows
        """Samples that found no room in an earlier step."""

    def plan(self, step: int) -> LoadingPlan | None:
        """The next plan; None where the mixture has ended.

        Args:
            step: its number.
        """
        job, draws, carried = self._job, self._draws, self.windows.table
        assert job.strategy is not None
        if draws.mixture.ended and not len(carried):
            return None
        draws.begin_draw()
        graph = DGraph.of(
            draws.metadata,
            job.tree,
            step=step,
            micro_batches=job.micro_batches,
            max_tokens=job.max_tokens,
            carried=carried,
            mixture=draws.mixture,
        ).modality(*job.measures.counted)
        try:
            made = job.strategy(graph, job.tree, step)  # draws the step, by graph.mix()
        except TooFewSamplesError:
            if not draws.mixture.ended:
                raise
            self.windows = Windows.of(self._with_drawn(step))
            return None
        samples = self._with_drawn(step)
        if samples is carried:
            raise ConfigurationError(
                f"the strategy has drawn nothing of the job's sources in step {step}; let it call "
                "graph.mix(), for the job's own weights, or graph.mix(weights)"
            )
        plan = check_plan(made, step=step, tree=job.tree, samples=samples)
        check_room(plan)
        self.windows = Windows.of(plan.carried)
        return plan

    def _with_drawn(self, step: int) -> SampleTable:
        """Carried samples, and those that the strategy has drawn for the step."""
        carried, drawn = self.windows.table, self._draws.of_step(step)
        if drawn is None:
            return carried
        return SampleTable.concatenate([carried, drawn]) if len(carried) else drawn


def check_plan(plan: Any, *, step: int, tree: ClientPlaceTree, samples: SampleTable) -> LoadingPlan:
    """
    Args:
        samples: carried samples, then drawn ones.

    Raises:
        ConfigurationError: not a plan, a plan of another step or mesh, or one that loses, doubles
            or invents samples, or has a bucket that no rank fetches.
    """
    if not isinstance(plan, LoadingPlan):
        raise ConfigurationError(
            f"the strategy returned a {type(plan).__name__}; let it return graph.plan()"
        )
    if plan.step != step or plan.tree != tree:
        raise ConfigurationError(
            f"the strategy returned a plan of step {plan.step} for the mesh {plan.tree.sizes}, not "
            f"of step {step} for {tree.sizes}; let it plan the graph that it is given"
        )
    _check_samples(plan.samples, samples)
    for name, each in [
        ("the plan", plan),
        *((f"subplan {n!r}", p) for n, p in plan.subplans.items()),
    ]:
        used = each.assignment.bucket[each.assignment.placed]
        lost = used[~each.delivery.is_fetched[used]]
        if len(lost):
            raise ConfigurationError(
                f"no rank fetches bucket {lost.min()} of {name}, distributed at {each.axis} for "
                f"stages={each.stages!r}; distribute at DP, CP or TP, or let all stages fetch"
            )
    return plan


def _check_samples(given: SampleTable, samples: SampleTable) -> None:
    theirs, ours = given.keys(), samples.keys()
    if given is samples or np.array_equal(theirs, ours):
        return
    same = len(theirs) == len(ours) and np.array_equal(np.sort(theirs), np.sort(ours))
    if not same:
        raise ConfigurationError(
            f"the strategy's plan has {len(theirs):,} samples, and not the {len(ours):,} that were "
            "drawn and carried, each once; plan only the graph's samples, and leave those that "
            "find no room in the plan, with bucket -1"
        )


def check_room(plan: LoadingPlan) -> None:
    """Refuses a plan that carries too many samples: if every step draws more than it holds, they
    pile up.

    Raises:
        SampleError: it does.
    """
    if plan.max_tokens is None:
        return
    room = plan.buckets * plan.micro_batches * plan.max_tokens
    left = int(plan.tokens[~plan.assignment.placed].sum())
    if left <= _MAX_CARRIED * room:
        return
    raise SampleError(
        f"in step {plan.step}, {len(plan.carried):,} samples of {left:,} tokens find no room, "
        f"more than {_MAX_CARRIED} steps of {room:,} tokens hold: a step draws more than it "
        "holds, and samples pile up; lower tokens_per_step or samples_per_step, or raise "
        "max_tokens or micro_batches"
    )
