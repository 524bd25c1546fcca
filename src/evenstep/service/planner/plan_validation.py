"""Checks that the plan a strategy returns is a plan of this step's samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError, EvenstepError, SampleError
from evenstep.mixture.sample_table import SampleTable
from evenstep.strategy import LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

_MAX_CARRIED = 2  # steps' worth of tokens that may be carried


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


def for_all(error: BaseException, step: int) -> EvenstepError:
    """An error in the user's code as one that can be sent to every client."""
    return EvenstepError(
        f"the strategy or schedule raised {type(error).__name__} in step {step}: {error}"
    )
