"""`PlanLog`: the plans of the last steps."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from evenstep.errors import ConfigurationError
from evenstep.service.planner.planner_state import PlannerState
from evenstep.strategy import LoadingPlan


@dataclass(frozen=True)
class LoggedPlan:
    """The plan of one step."""

    plan: LoadingPlan
    before: PlannerState
    """The state from which the step was planned."""


class PlanLog:
    """See the module docstring."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._plans: OrderedDict[int, LoggedPlan] = OrderedDict()

    def add(self, logged: LoggedPlan) -> None:
        step = logged.plan.step
        self._plans[step] = logged
        while len(self._plans) > self._kept:
            self._plans.popitem(last=False)

    def get(self, step: int) -> LoggedPlan | None:
        """The logged plan of a step, if it is kept."""
        return self._plans.get(step)

    def plan(self, step: int) -> LoadingPlan:
        """The plan of a step.

        Raises:
            ConfigurationError: it is not kept any more.
        """
        logged = self._plans.get(step)
        if logged is not None:
            return logged.plan
        first = next(iter(self._plans), None)
        kept = "none is" if first is None else f"those from step {first} on are"
        raise ConfigurationError(
            f"the plan of step {step} is not kept, {kept}; raise plans_kept= of ServiceMemory"
        )

    def clear(self, begin: int = 0) -> None:
        """Forgets the plans of this step and all after it."""
        for step in [step for step in self._plans if step >= begin]:
            del self._plans[step]
