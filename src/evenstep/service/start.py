"""`start`: a job to a running service."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.job import Job
from evenstep.service.local import LocalService

__all__ = ["BACKENDS", "start"]

BACKENDS = ("local", "ray")


def start(job: Job, *, backend: str = "local", **options: Any) -> Any:
    """Starts a job. Use it in a ``with`` statement.

    Args:
        backend: "local" runs all roles in this process, see `LocalService`; "ray" makes actors of
            them, see `evenstep.service.ray`.
        options: of the backend, such as ``loaders=4``.

    Raises:
        ConfigurationError: an unknown backend, or a source that cannot be opened.
        ImportError: the backend is not installed.
    """
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"start({type(job).__name__}) must be given an evenstep.service.Job"
        )
    if backend not in BACKENDS:
        raise ConfigurationError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if backend == "local":
        return LocalService(job, **options)
    return import_module("evenstep.service.ray").start(job, **options)
