"""Finds the running jobs of a cluster by name.

Every run of a job gives its actors names that no run had before, so a dead actor's name, which Ray
may keep, never collides.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.backends.ray.locators import import_ray
from evenstep.service.client.discovery import no_job
from evenstep.service.messages import message
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.job_state import JobInfo, check_name

_ANSWER_TIMEOUT = 10.0  # seconds within which a living registry answers
_RETRY_INTERVAL = 0.3  # seconds
_AUTH_MODE = "RAY_AUTH_MODE"


def connect(address: str | None, options: Mapping[str, Any] | None = None) -> bool:
    """Connects this process to a cluster, unless it is connected. Returns whether it was this
    call that connected it.

    Args:
        address: of the head of the cluster; "auto" is a cluster on this machine, "local" starts
            one. None is that of the environment variable RAY_ADDRESS, or else starts one.
        options: more for ``ray.init``.

    Raises:
        ConfigurationError: there is no cluster.
        EvenstepError: Ray cannot be started.
    """
    present_token()
    ray = import_ray()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        quiet["include_dashboard"] = False
    where = "on this machine" if address in (None, "auto", "local") else f"at {address}"
    try:
        with _keep_signal_handler():
            ray.init(address, **{**quiet, **(options or {})})
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(
            f"no Ray cluster can be reached {where} ({' '.join(str(error).split())}); start the "
            "service first, or give the address that it prints. If the cluster asks for a token, "
            f"copy ~/.ray/auth_token from the host that started it, and set {_AUTH_MODE}=token "
            "before Ray is imported"
        ) from error
    except Exception as error:  # Ray has no error class for a node that is too slow to start
        raise EvenstepError(
            f"Ray could not be started {where} ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); see its logs, or try again when there is less to do"
        ) from error
    return True


def present_token() -> None:
    """Lets Ray present this user's token to clusters. Recent releases ask for it by default, and
    present it to a cluster of this machine only, unless the environment says so before Ray is
    imported. Clusters that ask for none ignore it."""
    names = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    file = Path.home() / ".ray" / "auth_token"
    if "ray" not in sys.modules and (any(map(os.environ.get, names)) or file.exists()):
        os.environ.setdefault(_AUTH_MODE, "token")


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restores the process's own SIGTERM handler, which Ray replaces."""
    own = signal.getsignal(signal.SIGTERM)
    yield
    if callable(own) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, own)


def joined_cluster(connected: bool, name: str, deadline: float) -> tuple[JobInfo, ExitStack]:
    """A job on the cluster that this process is connected to; see `join`.

    Args:
        connected: whether to disconnect when the job is left; see `connect`.
        deadline: on the monotonic clock, until which the job may be started.

    Raises:
        ConfigurationError: there is no such job.
    """
    with ExitStack() as leaving:
        if connected:
            leaving.callback(import_ray().shutdown)
        return find(name, patience=deadline - time.monotonic()), leaving.pop_all()


def namespace_of(job: str) -> str:
    """The Ray namespace of a job's actors.

    Raises:
        ConfigurationError: the name has other characters than are allowed.
    """
    check_name(job)
    return f"evenstep-{job}"


def running() -> list[tuple[str, int]]:
    """Jobs and their run ids, the latest first, whether their actors still answer or not."""
    from ray.util import list_named_actors

    found = []
    for actor in list_named_actors(all_namespaces=True):
        run_id, _, role = actor["name"].partition("-")
        space = actor["namespace"]
        if space.startswith("evenstep-") and role == "registry" and run_id.isdecimal():
            found.append((space.removeprefix("evenstep-"), int(run_id)))
    return sorted(found, key=lambda each: -each[1])


def find(job: str, *, patience: float = 0.0) -> JobInfo:
    """A running job.

    Args:
        patience: seconds to wait for the job to be started.

    Raises:
        ConfigurationError: no job of that name is running.
        EvenstepError: its registry does not answer.
    """
    space = namespace_of(job)
    deadline = time.monotonic() + patience
    while True:
        jobs = running()
        silent = None
        for name, run_id in jobs:
            if name == job:
                try:
                    found = _ask_registry(space, run_id)
                except TimeoutError:
                    silent = _registry_name(run_id)
                    continue
                if found is not None:
                    return found
        if time.monotonic() >= deadline:
            break
        time.sleep(_RETRY_INTERVAL)
    if silent is not None:
        raise EvenstepError(
            f"job {job!r} is on this cluster, but its registry (actor {silent}, in a process named "
            f"ray::JobRegistry) has not answered for {_ANSWER_TIMEOUT:.0f} s: it is stopped, "
            "hangs or is overloaded. Let it run again, or end it and choose another name"
        )
    raise no_job(job, "this cluster or machine", {name for name, _ in jobs if name != job})


def _ask_registry(space: str, run_id: int) -> JobInfo | None:
    """None if it is gone, or its job has not started.

    Raises:
        TimeoutError: it does not answer.
        EvenstepError: a role of the job cannot be made.
    """
    ray = import_ray()
    try:
        registry = ray.get_actor(_registry_name(run_id), namespace=space)
        answer = ray.get(
            registry.answer.remote([message(JobRegistry.job)]), timeout=_ANSWER_TIMEOUT
        )
    except (TimeoutError, ray.exceptions.RayTaskError):
        raise
    except (ValueError, ray.exceptions.RayError):
        return None
    job: JobInfo | None = answer.only()
    return job


def _registry_name(run_id: int) -> str:
    return f"{run_id}-registry"
