"""Options of `start`, in groups: what happens when roles fail, which files are written, and Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenstep.plan.value_checks import check_at_least, check_seconds

if TYPE_CHECKING:
    from evenstep.service.job.roles import Loaders


@dataclass(frozen=True, kw_only=True)
class ServiceFaults:
    """What happens when processes of the service die or hang.

    Args:
        standbys: loaders that wait, ready to replace any loader that dies.
        patience: seconds within which loaders must have opened their sources; and without a step of
            a trainer after which others that are far ahead do not wait for it.
        hung_after: seconds after which a loader that says nothing, and on Ray any role, is killed
            and replaced. None waits for it: it may be stopped, or its machine overloaded.
        warn_after: seconds after which a client that waits logs, as a warning of the logger
            "evenstep", for which role; again after twice as long, and so on. None or 0
            logs nothing.

    Raises:
        ConfigurationError: a value is not possible.
    """

    standbys: int = 0
    patience: float = 120.0
    hung_after: float | None = None
    warn_after: float | None = 20.0

    def __post_init__(self) -> None:
        check_at_least(0, standbys=self.standbys)
        check_seconds("waits for what hangs", hung_after=self.hung_after)
        check_seconds("logs nothing", warn_after=self.warn_after)


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Files that a service writes, with a line of JSON for each entry but for `seen`. None writes
    nothing.

    Args:
        steps: each step of the client of rank 0, on the machine where that rank trains;
            ``evenstep report`` shows it.
        events: deaths, restarts, promotions and scaling; on Ray on the registry's machine.
        seen: a folder that all machines see, or a URL that fsspec knows, for Parquet files of which
            samples went into which steps and ranks, of all runs of a job; `evenstep service seen`
            reads them.
    """

    steps: str | os.PathLike[str] | None = None
    events: str | os.PathLike[str] | None = None
    seen: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, path in vars(self).items():
            if path is not None and "://" not in os.fspath(path):
                object.__setattr__(self, name, os.path.abspath(path))


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """How a service runs on Ray.

    Args:
        address: of a cluster; "local" starts one on this machine, which ends with the service. None
            is that of this process or of the environment variable RAY_ADDRESS; if there is none,
            one is started.
        cpus: CPUs that Ray reserves for each actor, such as 0.5; None is 1, or an equal share of
            the free ones if they are fewer.
        placement: where Ray makes actors, and what they reserve there: for "loaders",
            "standbys", "constructors" and "planner", options of Ray's actors (``label_selector``,
            ``resources``, ``memory``, ``num_cpus``, ``scheduling_strategy``), or a list of such
            options, one for each actor.
        init: more for ``ray.init``, such as ``num_cpus`` or ``runtime_env``.
        detached: the job goes on without the process that started it, and ends after so many
            seconds in which no client has taken a step; `start` returns what `attach` does.
            None: it ends with that process.
    """

    address: str | None = None
    cpus: float | None = None
    placement: Mapping[str, Any] | None = None
    init: Mapping[str, Any] | None = None
    detached: float | None = None

    def __post_init__(self) -> None:
        check_seconds("would end it at once", detached=self.detached)


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Arguments of `start` that backends have in common."""

    name: str = "job"
    loaders: Loaders = 1
    constructors: int | None = None
    state: Mapping[str, Any] | None = None
    store: str | os.PathLike[str] | None = None
    faults: ServiceFaults = ServiceFaults()
    logs: LogOptions = LogOptions()
