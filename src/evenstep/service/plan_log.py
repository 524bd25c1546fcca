"""Plans that were made: the last ones in memory, all of them in a file if one is named.

The file has a line of JSON for each step, the plan in it exact. Where a job was resumed, a step may
have several lines, of which the last holds.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.strategy import LoadingPlan, from_json, to_json
from evenstep.strategy.mixture import DrawRecord
from evenstep.strategy.mixture.state import MixtureState
from evenstep.strategy.sample_table import SampleTable

__all__ = ["LoggedPlan", "PlanLog", "PlannerState", "read_log"]


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """What the planner knows before a step. It never changes, and is small: it is written out only
    where it is asked for."""

    step: int
    mixture: MixtureState
    carried: SampleTable
    signals: Sequence[Sequence[Any]]
    """Reports that do not count yet; see `Signals.to_list`."""


@dataclass(frozen=True)
class LoggedPlan:
    """Of one step."""

    plan: LoadingPlan
    record: DrawRecord
    """Of the draws."""
    before: PlannerState
    """From which the step was planned."""


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
        """One that is in memory."""
        return self._plans.get(step)

    def plan(self, step: int) -> LoadingPlan:
        """
        Raises:
            ConfigurationError: it is not kept.
        """
        logged = self._plans.get(step)
        if logged is not None:
            return logged.plan
        if self._path is not None and self._path.exists():
            plan = read_log(self._path, step)
            if plan is not None:
                return plan
        first = next(iter(self._plans), None)
        since = "none is" if first is None else f"those from step {first} on are"
        raise ConfigurationError(
            f"the plan of step {step} is not kept, {since}; raise plans_kept= of Job, or name a "
            "file by plan_log="
        )

    def clear(self) -> None:
        """Forgets what is in memory."""
        self._plans.clear()


def read_log(path: str | os.PathLike[str], step: int) -> LoadingPlan | None:
    """The plan of a step out of a file; None where it has none. A last line that was cut off while
    it was written does not count."""
    found = None
    start = f'{{"step":{step},'
    with open(path) as file:
        for line in file:
            if line.startswith(start) and line.endswith("\n"):
                found = line
    return None if found is None else from_json(json.dumps(json.loads(found)["plan"]))
