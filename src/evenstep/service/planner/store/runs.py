"""The runs of a store: each start of a job is one, in a folder of its own."""

from __future__ import annotations

import os
import secrets
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError
from evenstep.service.planner.store.run_store import RunStore
from evenstep.service.planner.store.url_folder import url_folder

if TYPE_CHECKING:
    from evenstep.service.job.job import Job

_RUN = "run-"


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its states; can be sent to the process of its planner."""

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


_KEEP = 128  # steps back from the newest one


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
    text = os.fspath(url)
    if "://" not in text:
        text = os.path.abspath(text)
    last = max((int(run.split("-")[1]) for run in _runs(text)), default=0)
    return RunPlace(text, f"{_RUN}{last + 1:04d}-{secrets.token_hex(2)}")


def stored_state(job: Job, url: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """The state to start a job with again, from a store of its last run: for ``es.start(job,
    store=url, state=stored_state(job, url))``.

    Args:
        step: the one to resume at: trainers that have a model of before step s give s. None is
            that of the last state that was asked for, as `common_state` does; if none ever was,
            a step that no rank had gone beyond, by what was planned.

    Raises:
        ConfigurationError: the store has no state of the step, or none at all.
    """
    for run in reversed(_runs(url)):
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


def _runs(url: str | os.PathLike[str]) -> list[str]:
    return [name for name in url_folder(url).names() if name.startswith(_RUN)]
