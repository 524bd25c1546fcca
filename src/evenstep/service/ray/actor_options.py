"""Kinds of actors, and what each of them is given of the cluster.

None is restarted and no call of theirs is repeated: who dies is told of, see `desk`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.job import Job
from evenstep.service.ray.actors import RoleActor
from evenstep.service.ray.registry import JobRegistry

__all__ = ["cpus_of", "desk_actor", "role_actor", "threads_of"]

_THREADS = 32  # of a constructor, at most; what it is asked for beyond that waits its turn
_FREE = 0.9  # of the cluster's CPUs that are free, at most, for all actors together


def role_actor(ray: Any, cpus: float) -> Any:
    """Of a role; its questions about itself wait for no message."""
    watch: Callable[[Any], Any] = ray.method(concurrency_group="watch")

    class Watched(RoleActor):
        @watch
        def stand_by(self) -> None:
            super().stand_by()

        @watch
        def measure(self) -> dict[str, Any]:
            return super().measure()

    return ray.remote(
        concurrency_groups={"watch": 2}, max_restarts=0, max_task_retries=0, num_cpus=cpus
    )(Watched)


def desk_actor(ray: Any, clients: int) -> Any:
    """Each client holds a question that is not answered, and asks others meanwhile."""
    return ray.remote(
        max_restarts=0, max_task_retries=0, num_cpus=0, max_concurrency=clients * 4 + 100
    )(JobRegistry)


def threads_of(job: Job, groups: int) -> int:
    """In which a constructor waits for what its clients have asked for ahead."""
    clients = groups * len(job.tree) // job.tree.sizes["DP"]
    return min(clients * (job.prefetch + 1) + 1, _THREADS)


def cpus_of(ray: Any, cpus: float | None, count: int) -> float:
    """That each of so many actors reserves.

    Raises:
        ConfigurationError: more than are free.
    """
    free = float(ray.available_resources().get("CPU", 0.0))
    if cpus is None:
        return min(1.0, int(1000 * _FREE * free / count) / 1000)
    if cpus < 0 or cpus * count > free:
        raise ConfigurationError(
            f"cpus={cpus:g} for each of {count} actors, and the cluster has {free:g} CPUs free; "
            f"choose at most {free / count:.3g}, as 0.25 or 0, or fewer loaders and constructors"
        )
    return cpus
