"""`RunStore`: the states of a run and what trainers reported, in a folder or under a URL.

    RUN/planners/      the planners that have started on it, see `Generation`
    RUN/states/        a file for each state
    RUN/reports/       a file for each report
    RUN/checkpoints/   a file for each state that trainers have asked for
    RUN/common/        a file that says at which step all ranks last met to save

The newest states are kept, and the last ones that trainers have asked for. Reports are kept as long
as one of the newest states is older.

Each start of a job is a run, in a folder of its own: its `RunPlace`.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError
from evenstep.service.planner.changes import Change, merged_changes
from evenstep.service.planner.store.report_log import LoggedReport, ReportLog
from evenstep.service.planner.store.store_files import (
    Generation,
    UrlFolder,
    absolute,
    decoded,
    encoded,
    url_folder,
)
from evenstep.service.planner.trainer_reports import merged

if TYPE_CHECKING:
    from evenstep.service.job.job import Job


_LOGGER = logging.getLogger("evenstep")
_CHECKPOINTS = 64
_KEEP = 128  # steps back from the newest one
_LAST = "last"  # a file's name


class RunStore:
    """See the module docstring. States may be written in another thread than reports."""

    def __init__(self, url: str | os.PathLike[str], run: str, *, keep: int = _KEEP) -> None:
        """
        Args:
            url: a folder, or a URL that fsspec knows.
            run: names the run within it.
            keep: steps back from the newest state whose states are kept.
        """
        folder = url_folder(url).folder(run)
        self._planners, self._files = folder.folder("planners"), folder.folder("states")
        self._checkpoints = folder.folder("checkpoints")
        self._common = folder.folder("common")
        self._log = ReportLog(folder.folder("reports"), self._planners)
        self._keep = keep
        self._saving = threading.Lock()
        self._generation: Generation | None = None
        self._states: list[str] = []
        """Files from the oldest state that a restarted planner may need, in order."""
        self.reports: list[LoggedReport] = []
        """What trainers had reported by the time of `begin`, in order, as far as it is kept."""
        self.changes: tuple[Change, ...] = ()
        """Those by hand since the oldest of these reports could have come."""
        self.planned = 0
        """The first step that is not known to have been planned by the time of `begin`."""

    def begin(self) -> None:
        """Takes over the run: only this planner writes, until the next one starts.

        Raises:
            ConfigurationError: the store cannot be written, or a report is damaged.
            SupersededError: another planner started at the same time.
        """
        self._generation = Generation(self._planners)
        records = self._log.begin(self._generation)
        self._generation.check()
        self._states = _counted(self._files.names())
        self.reports = [each for each in records if each.rank >= 0]
        self.changes = _changes_in(records)
        past = [each.planned_step + each.of_step for each in records]
        self.planned = max([*past, *map(_step, self._states)], default=0)

    # States

    def save_state(self, step: int, state: Mapping[str, Any]) -> None:
        """Writes the state before a step, and removes states and reports that are not needed any
        more.

        Raises:
            ConfigurationError: it cannot be written.
            SupersededError: a later planner has taken over.
        """
        with self._saving:
            # Never over another one: a write that is cut off would leave none.
            before = sum(_step(each) == step for each in self._states)
            name = self._put(self._files, step, state, suffix=f"-{before:03d}" if before else "")
            self._states = sorted({*self._states, name})
            self._trim()

    def drop_after(self, step: int) -> None:
        """Removes the states of all later steps, which will be planned again. Reports that
        came while a later step was planned next count as if they had come while this one was."""
        with self._saving:
            for folder in (self._files, self._checkpoints):
                for name in [each for each in folder.names() if _step(each) > step]:
                    folder.remove(name)
            self._states = self._files.names()
            self._log.plan_again_from(step)
            self.reports = [
                replace(each, planned_step=min(each.planned_step, step))
                for each in self.reports
                if each.step < step
            ]

    def newest_state(self, at_most: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """The newest state that is whole, and the step it is for; None if there is none. Those that
        are damaged, or were cut off while they were written, are logged.

        Args:
            at_most: the last step that it may be for.

        Raises:
            ConfigurationError: the store cannot be read.
        """
        return _newest(self._files, _counted(self._files.names()), at_most)

    def add_checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Writes a state that a trainer has asked for; durable when this returns. The last few are
        kept.

        Raises:
            ConfigurationError: it cannot be written.
            SupersededError: a later planner has taken over.
        """
        self._put(self._checkpoints, step, state)
        for old in self._checkpoints.names()[:-_CHECKPOINTS]:
            self._checkpoints.remove(old)

    def save_meeting(self, step: int) -> None:
        """Writes at which step all ranks have last met to save; as `add_checkpoint`."""
        assert self._generation is not None, "begin() comes first"
        self._common.put(_LAST, encoded(_LAST, {"step": step}))
        self._generation.check()

    def last_meeting(self) -> int:
        """See `Planner.last_meeting`."""
        content = self._common.get(_LAST)
        found = None if content is None else decoded(_LAST, content)
        return -1 if found is None else int(found["step"])

    def _put(self, folder: UrlFolder, step: int, state: Mapping[str, Any], suffix: str = "") -> str:
        """Writes a state as this planner's, and returns the name of its file."""
        generation = self._generation
        assert generation is not None, "begin() comes first"
        name = f"{step:012d}-{generation.name}{suffix}"
        folder.put(name, encoded(name, state))
        generation.check()
        return name

    def resumable(self, step: int | None, reached: int) -> dict[str, Any] | None:
        """The state to resume a job from, with all reports on the steps before it, and all that was
        changed by hand.

        Args:
            step: the one to resume at; None is that of the last checkpoint, and without any that
                of the newest state up to `reached`.

        Raises:
            MismatchError: it is of another release.
        """
        from evenstep.service.planner.planner_state import check_state

        records = list(self._log.read().values())
        newest = self.newest_state()
        found = _newest(self._checkpoints, self._checkpoints.names(), step)
        asked_for = found is not None and step in (None, found[0])
        if not asked_for:
            least = max(reached, self.steps()[0]) if step is None else step
            found = self.newest_state(least)
        if found is None or newest is None or step not in (None, found[0]):
            return None
        at, state = found
        for each in (state, newest[1]):
            check_state(each)
        saved = [map(Change.from_dict, each["changes"]) for each in (state, newest[1])]
        changes = merged_changes(*saved, _changes_in(records))
        state = {**state, "changes": [each.to_dict() for each in changes]}
        if asked_for:
            return state
        later = [r.said for r in records if r.rank >= 0 and r.step < at <= r.planned_step]
        before = [each for each in state["signals"] if each[0] < at]
        return {**state, "signals": merged([*before, *later])}

    def steps(self) -> list[int]:
        """The steps of which there are states."""
        names = [*self._files.names(), *self._checkpoints.names()]
        return sorted({_step(name) for name in names})

    def _oldest(self) -> int:
        """The first step whose state and all reports since are kept."""
        steps = [_step(name) for name in self._states]
        before = [step for step in steps if step <= steps[-1] - self._keep]
        return max(before, default=min(steps, default=0))

    def _trim(self) -> None:
        oldest = self._oldest()
        while _step(self._states[0]) < oldest:
            self._files.remove(self._states.pop(0))
        self._log.trim(oldest)

    # Reports

    def add_report(self, planned_step: int, step: int, rank: int, signals: Any) -> None:
        """Writes what a rank reported on a step; durable when this returns.

        Args:
            planned_step: the step that is planned next.

        Raises:
            ConfigurationError: it cannot be written.
            SupersededError: a later planner has taken over.
        """
        self._log.add(LoggedReport(planned_step, step, rank, signals))

    def add_change(self, planned_step: int, change: Change) -> None:
        """Writes what somebody has changed by hand; as `add_report`."""
        self._log.add(LoggedReport(planned_step, change=change.to_dict()))

    def add_planned(self, step: int) -> None:
        """Writes that a step was planned, so that reports after it cannot count for it; as
        `add_report`."""
        self._log.add(LoggedReport(step))

    def reports_since(self, step: int) -> list[LoggedReport]:
        """What was reported by the time of `begin` while this step or one after it was planned
        next, in order.

        Raises:
            ConfigurationError: some of that is not kept any more.
        """
        if self.reports and step < self._oldest():
            raise ConfigurationError(
                f"reports since step {step} are not kept any more in {self._files}, and no later "
                f"state is whole: those since step {self._oldest()} are; resume from a state"
            )
        return [each for each in self.reports if each.planned_step >= step]


def _counted(states: Sequence[str]) -> list[str]:
    """Without those of planners that had been superseded: a later planner continues from the newest
    state, or, for another mesh, from an earlier one, and has states from there on."""
    first: dict[str, int] = {}
    for name in states:
        first.setdefault(_generation(name), _step(name))
    return [
        name
        for name in states
        if not any(each > _generation(name) and at <= _step(name) for each, at in first.items())
    ]


def _newest(
    folder: UrlFolder, names: Sequence[str], at_most: int | None
) -> tuple[int, dict[str, Any]] | None:
    for name in reversed(names):
        step = _step(name)
        if at_most is not None and step > at_most:
            continue
        content = folder.get(name)
        state = None if content is None else decoded(name, content)
        if state is not None:
            return step, state
        _LOGGER.warning("state %s in %s is damaged, and is left out", name, folder)
    return None


def _changes_in(records: Iterable[LoggedReport]) -> tuple[Change, ...]:
    found = (each.change for each in records if each.change is not None)
    return merged_changes(map(Change.from_dict, found))


def _step(name: str) -> int:
    return int(name.split("-")[0])


def _generation(name: str) -> str:
    return "-".join(name.split("-")[1:3])


_RUN = "run-"


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its states, or its record of what was seen; can be sent to the process of
    its planner."""

    url: str
    run: str
    own: bool = False
    """Whether it is a folder that the service has made for itself, on the machine that started
    it."""

    @property
    def is_here(self) -> bool:
        """Whether this machine sees it."""
        return not self.own or os.path.isdir(self.url)

    def open(self, job: Job) -> RunStore:
        return RunStore(self.url, self.run, keep=max(_KEEP, job.memory.plans_kept))


def own_run() -> RunPlace:
    """A new folder, for a run of which nothing is to be kept after its end."""
    return RunPlace(tempfile.mkdtemp(prefix="evenstep-run-"), f"{_RUN}0001", own=True)


def new_run(url: str | os.PathLike[str] | None) -> RunPlace | None:
    """A place for the next run in a store; None without a store.

    Raises:
        ConfigurationError: the store cannot be listed.
        ImportError: fsspec, or the package that it needs for the URL, is not installed.
    """
    if url is None:
        return None
    last = max((int(run.split("-")[1]) for run in runs_of(url)), default=0)
    return RunPlace(absolute(url), f"{_RUN}{last + 1:04d}-{secrets.token_hex(2)}")


def stored_state(job: Job, url: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """The state to start a job with again, from a store of its last run: for ``es.start(job,
    store=url, state=stored_state(job, url))``.

    Args:
        step: the one to resume at: trainers that have a model of before step s give s. None is
            that of the last state that was asked for, as `common_state` does; if none ever was,
            a step that no rank had gone beyond, by what was planned.

    Raises:
        ConfigurationError: the store has no state of the step, or none at all.
        MismatchError: it is of another release.
    """
    for run in reversed(runs_of(url)):
        store = RunStore(url, run)
        newest = store.newest_state()
        if newest is None:
            continue  # it ended before it had started
        found = store.resumable(step, newest[0] - job.memory.prefetch - 1)
        if found is None:
            raise ConfigurationError(
                f"{run} in {url} has no state of step {step}; it has those of steps "
                f"{', '.join(map(str, store.steps()[-8:]))}, the last of {len(store.steps())}"
            )
        return found
    raise ConfigurationError(f"{url} has no whole state of any run; check the folder or URL")


def has_state(url: str | os.PathLike[str]) -> bool:
    """Whether there is a state to resume from in a store, which need not be there yet.

    Raises:
        ConfigurationError: the store cannot be read.
    """
    return any(RunStore(url, run).newest_state() is not None for run in reversed(runs_of(url)))


def runs_of(url: str | os.PathLike[str]) -> list[str]:
    """The names of all runs in a store, in order."""
    return [name for name in url_folder(url).names() if name.startswith(_RUN)]
