"""`ReportLog`: what trainers reported, and which step the planner was about to plan then.

Each record is a separate file, since object stores cannot append. No name is used twice, since a
failed write may be carried out later. Each record names the previous one that was certainly
written. A record that is skipped in this chain, or that is the last one and damaged, was left by a
failed write, and no one has relied on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.planner.store.store_files import (
    Generation,
    UrlFolder,
    decoded,
    encoded,
    noted,
)


@dataclass(frozen=True)
class LoggedReport:
    """What a rank reported on a step, or a step that was planned."""

    planned_step: int
    """The step that was planned next when the report came."""
    step: int = -1
    rank: int = -1
    """-1 says that `planned_step` itself has been planned, if there is no change."""
    signals: Mapping[str, Any] | None = None
    change: Mapping[str, Any] | None = None
    """That was made by hand; see `Change`."""

    @property
    def said(self) -> tuple[int, int, Mapping[str, Any]]:
        """What the rank reported, as `Signals` takes it."""
        return self.step, self.rank, self.signals or {}

    @property
    def of_step(self) -> bool:
        """Whether it only says that a step was planned."""
        return self.rank < 0 and self.change is None


class ReportLog:
    """See the module docstring. Use it in one thread, `trim` apart."""

    def __init__(self, records: UrlFolder, planners: UrlFolder) -> None:
        """
        Args:
            records: a folder with a file for each record.
            planners: see `Generation`.
        """
        self._records, self._planners = records, planners
        self._written: dict[str, LoggedReport] = {}
        """By name; see `read`."""
        self._next, self._last = 0, -1
        """The numbers of the next record and of the last one that was written for certain."""
        self._generation: Generation | None = None

    def begin(self, generation: Generation) -> list[LoggedReport]:
        """Reads what earlier generations have written, and ends them.

        Raises:
            ConfigurationError: a record is damaged.
        """
        found = self.read()
        counts: dict[str, int] = {}
        for name in found:
            earlier, number = _parsed(name)
            counts[earlier] = number + 1  # names are in order
        generation.note(counts)
        self._generation, self._written = generation, found
        return list(found.values())

    def read(self) -> dict[str, LoggedReport]:
        """All records that count, by name, in order.

        Raises:
            ConfigurationError: one is damaged that was whole.
        """
        notes = noted(self._planners)
        found: dict[str, LoggedReport] = {}
        following: dict[str, int] = {}
        """By generation, the record that must come before the one read last."""
        for name in reversed(self._records.names()):
            generation, number = _parsed(name)
            later = min((each for each in notes if each > generation), default=None)
            if later is not None and number >= notes[later].get(generation, 0):
                continue  # of a planner that had been superseded
            if number > following.get(generation, number):
                continue  # passed over
            content = self._records.get(name)
            value = None if content is None else decoded(name, content)
            if value is not None:
                following[generation] = value["previous"]
                found[name] = LoggedReport(**value["report"])
            elif content is not None and generation in following:
                raise ConfigurationError(
                    f"report {name} in {self._records} is damaged: it is not what was written; "
                    "restore the file, or resume the job from a state in another place"
                )
        return dict(reversed(found.items()))

    def add(self, report: LoggedReport) -> None:
        """Writes a record; it is durable when this returns.

        Raises:
            ConfigurationError: it cannot be written.
            SupersededError: a later planner has taken over.
        """
        generation = self._generation
        assert generation is not None, "begin() comes first"
        number, self._next = self._next, self._next + 1
        name = f"{generation.name}-{number:09d}"
        value = {"previous": self._last, "report": asdict(report)}
        self._records.put(name, encoded(name, value))
        generation.check()
        self._written[name] = report
        self._last = number

    def plan_again_from(self, step: int) -> None:
        """Forgets that this step and later ones were planned. Reports on earlier steps that arrived
        since count as if they had arrived while this step was planned next, and so do changes."""

        def stays(report: LoggedReport) -> bool:
            return report.change is not None or step > report.step >= 0

        for report in list(self._written.values()):
            if report.planned_step > step and stays(report):
                self.add(replace(report, planned_step=step))
        self._remove(lambda r: r.planned_step > step or (r.planned_step == step and not stays(r)))

    def trim(self, oldest: int) -> None:
        """Removes records of when steps before the oldest were planned next."""
        self._remove(lambda report: report.planned_step < oldest)

    def _remove(self, these: Callable[[LoggedReport], bool]) -> None:
        for name, report in list(self._written.items()):
            if these(report):
                self._records.remove(name)
                del self._written[name]


def _parsed(name: str) -> tuple[str, int]:
    """The generation that wrote a record, and its number."""
    generation, _, number = name.rpartition("-")
    return generation, int(number)
