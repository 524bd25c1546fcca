"""`PlanLog`: the last plans in memory, and all of them in a file if one is named.

The file has a line of JSON for each step. After a job was resumed, a step may have several lines;
the last one counts.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.files import cannot
from evenstep.service.planner.planner_state import PlannerState
from evenstep.strategy import LoadingPlan, to_json


@dataclass(frozen=True)
class LoggedPlan:
    """The plan of one step, and all that it was made from."""

    plan: LoadingPlan
    before: PlannerState
    """The state from which the step was planned."""


class PlanLog:
    """See the module docstring."""

    def __init__(self, kept: int, path: str | os.PathLike[str] | None = None) -> None:
        self._kept, self._path = kept, None if path is None else Path(path)
        self._plans: OrderedDict[int, LoggedPlan] = OrderedDict()

    def add(self, logged: LoggedPlan) -> None:
        step = logged.plan.step
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(to_json(logged.plan) + "\n")
            except OSError as error:
                raise cannot("write", self._path, error) from error
        self._plans[step] = logged
        while len(self._plans) > self._kept:
            self._plans.popitem(last=False)

    def get(self, step: int) -> LoggedPlan | None:
        """The logged plan of a step, if it is in memory."""
        return self._plans.get(step)

    def plan(self, step: int) -> LoadingPlan:
        """The plan of a step, from memory.

        Raises:
            ConfigurationError: it is not kept any more.
        """
        logged = self._plans.get(step)
        if logged is not None:
            return logged.plan
        raise ConfigurationError(
            f"the plan of step {step} is not kept any more; raise plans_kept= of MemoryOptions"
        )

    def clear(self) -> None:
        """Forgets the plans in memory."""
        self._plans.clear()
