"""`PlanLog`: the last plans in memory, and all of them in a file if one is named.

The file has a line of JSON for each step, with the exact plan. After a job was resumed, a step may
have several lines; the last one counts.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.service.planner_state import PlannerState
from evenstep.strategy import LoadingPlan, from_json, to_json
from evenstep.strategy.mixture import DrawRecord


@dataclass(frozen=True)
class LoggedPlan:
    """The plan of one step, and all that it was made from."""

    plan: LoadingPlan
    record: DrawRecord
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
            record = json.dumps(logged.record.to_dict(), separators=(",", ":"))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(f'{{"step":{step},"record":{record},"plan":{to_json(logged.plan)}}}\n')
        self._plans[step] = logged
        while len(self._plans) > self._kept:
            self._plans.popitem(last=False)

    def get(self, step: int) -> LoggedPlan | None:
        """The logged plan of a step, if it is in memory."""
        return self._plans.get(step)

    def plan(self, step: int) -> LoadingPlan:
        """The plan of a step, from memory or from the file.

        Raises:
            ConfigurationError: neither has it.
        """
        logged = self._plans.get(step)
        if logged is not None:
            return logged.plan
        if self._path is not None and self._path.exists():
            plan = read_log(self._path, step)
            if plan is not None:
                return plan
        first = next(iter(self._plans), None)
        kept = "none is" if first is None else f"those from step {first} on are"
        raise ConfigurationError(
            f"the plan of step {step} is not kept, {kept}; raise plans_kept= of Job, or give a "
            "file as plan_log="
        )

    def clear(self) -> None:
        """Forgets the plans in memory."""
        self._plans.clear()


def read_log(path: str | os.PathLike[str], step: int) -> LoadingPlan | None:
    """The plan of a step, read from a file; None if it has none. Ignores a last line that was cut
    off while it was written."""
    found = None
    start = f'{{"step":{step},'
    with open(path) as file:
        for line in file:
            if line.startswith(start) and line.endswith("\n"):
                found = line
    return None if found is None else from_json(json.dumps(json.loads(found)["plan"]))
