"""`PlanLog`: the last plans in memory, and all of them in a file if one is named.

The file has a line of JSON for each step, with the exact plan and a checksum of the line before it.
After a job was resumed, a step may have several lines; the last one counts.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError, parsing
from evenstep.files import LineFile, cannot
from evenstep.mixture import DrawRecord
from evenstep.service.planner.planner_state import PlannerState
from evenstep.strategy import LoadingPlan, from_json, to_json


@dataclass(frozen=True)
class LoggedPlan:
    """The plan of one step, and all that it was made from."""

    plan: LoadingPlan
    records: Sequence[DrawRecord]
    """Of the draws that were made for it."""
    before: PlannerState
    """The state from which the step was planned."""


class PlanLog:
    """See the module docstring."""

    def __init__(self, kept: int, path: str | os.PathLike[str] | None = None) -> None:
        self._kept, self._path = kept, None if path is None else Path(path)
        self._file = None if path is None else LineFile(path)
        self._plans: OrderedDict[int, LoggedPlan] = OrderedDict()

    def add(self, logged: LoggedPlan) -> None:
        step = logged.plan.step
        if self._file is not None:
            drawn = [record.to_dict() for record in logged.records]
            records = json.dumps(drawn, separators=(",", ":"))
            self._file.add(
                checked(f'{{"step":{step},"records":{records},"plan":{to_json(logged.plan)}')
            )
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
            f"the plan of step {step} is not kept, {kept}; raise plans_kept= of "
            "ServiceMemory, or give a file as plans= of LogOptions"
        )

    def clear(self, begin: int = 0) -> None:
        """Forgets the plans in memory, of this step and all after it."""
        for step in [step for step in self._plans if step >= begin]:
            del self._plans[step]


def checked(text: str) -> bytes:
    """The line of a plan, with its checksum."""
    line = text.encode()
    return line + b',"crc32":%d}' % zlib.crc32(line)


_START = re.compile(rb'\{"step":\d+,')
_END = re.compile(rb',"crc32":(\d{1,10})}\n')


def read_log(path: str | os.PathLike[str], step: int) -> LoadingPlan | None:
    """The plan of a step, read from a file; None if it has none. Ignores a last line that was cut
    off while it was written.

    Raises:
        ConfigurationError: the file cannot be read, or the line of the step is damaged.
    """
    start = b'{"step":%d,' % step
    found, number = None, 0
    try:
        with open(path, "rb") as file:
            for at, line in enumerate(file, 1):
                # A whole line whose beginning is damaged may have been that of any step.
                lost = line.endswith(b"}\n") and not _START.match(line)
                if lost or (line.startswith(start) and line.endswith(b"\n")):
                    found, number = line, at
    except OSError as error:
        raise cannot("read", path, error) from error
    if found is None:
        return None
    where = f"line {number} of {path}"
    end = _END.search(found, len(found) - 24)
    if end is None or int(end[1]) != zlib.crc32(found[: end.start()]):
        raise ConfigurationError(
            f"{where} is damaged: it is not what was written; give a copy of the file, or let the "
            "job make the plan again from a state before the step"
        )
    with parsing(where, remedy="use the evenstep that wrote it"):
        return from_json(json.dumps(json.loads(found)["plan"]))
