"""Running jobs of a cluster, by name.

Every start of a job gives its actors names that no start had before, so that the name of one that
died, which Ray may keep, is in nobody's way.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.ray.import_ray import import_ray
from evenstep.service.ray.registry import JobInfo, named

__all__ = ["connect", "find", "running"]

_ANSWERS = 10.0  # seconds within which a desk that lives answers
_AGAIN = 0.3


def connect(address: str | None, options: Mapping[str, Any] | None = None) -> bool:
    """Takes part in a cluster, unless this process does already. Says whether it has begun to.

    Args:
        address: of its head, or "auto" for one on this machine, "local" to start one. None takes
            part in that of the environment variable RAY_ADDRESS, or starts one.
        options: more for ``ray.init``.

    Raises:
        ConfigurationError: there is no cluster.
        EvenstepError: Ray cannot be started.
    """
    ray = import_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        quiet["include_dashboard"] = False
    where = "on this machine" if address in (None, "auto", "local") else f"at {address}"
    try:
        with _own_handlers():
            ray.init(address, **{**quiet, **(options or {})})
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(
            f"there is no Ray cluster to be reached {where} ({' '.join(str(error).split())}); "
            "start the service first, or name the address that it prints"
        ) from error
    except Exception as error:  # Ray has no kind of its own for a node that is too slow to start
        raise EvenstepError(
            f"Ray could not be started {where} ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); see its logs, and try again when the machine has "
            "less to do"
        ) from error
    return True


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Ray takes SIGTERM over. Where the process has a handler of its own, that stays."""
    own = signal.getsignal(signal.SIGTERM)
    yield
    if callable(own) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, own)


def running() -> list[tuple[str, int]]:
    """Jobs and their epochs, the latest first, whether they still answer or not."""
    from ray.util import list_named_actors

    found = []
    for actor in list_named_actors(all_namespaces=True):
        epoch, _, role = actor["name"].partition("-")
        space = actor["namespace"]
        if space.startswith("evenstep-") and role == "desk" and epoch.isdecimal():
            found.append((space.removeprefix("evenstep-"), int(epoch)))
    return sorted(found, key=lambda each: -each[1])


def find(job: str, *, patience: float = 0.0) -> tuple[JobInfo, Any]:
    """A running job, and its desk.

    Args:
        patience: seconds to wait for it to be started.

    Raises:
        ConfigurationError: none of that name runs.
    """
    space = named(job)
    until = time.monotonic() + patience
    while True:
        jobs = running()
        for name, epoch in jobs:
            if name == job:
                found = _asked(space, epoch)
                if found is not None:
                    return found
        if time.monotonic() >= until:
            break
        time.sleep(_AGAIN)
    names = ", ".join(sorted({name for name, _ in jobs if name != job})) or "none"
    raise ConfigurationError(
        f"no job named {job!r} runs on this cluster; running are: {names}. Start it, or give its "
        "name"
    )


def _asked(space: str, epoch: int) -> tuple[JobInfo, Any] | None:
    ray = import_ray()
    try:
        desk = ray.get_actor(f"{epoch}-desk", namespace=space)
        about = ray.get(desk.about.remote(), timeout=_ANSWERS)
        return None if about is None else (about, desk)
    except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None
