"""How actors are declared to Ray, and how many CPUs and threads each is given.

Ray restarts actors as often as their processes die, and repeats no calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.ray.actors import RoleActor
from evenstep.service.backends.ray.loader_actor import LoaderActor
from evenstep.service.backends.ray.registry_actor import JobRegistryActor

_WATCHERS = 16
"""Threads for health calls. Each registry keeps one busy, also one that has died."""
_CPU_SHARE = 0.9  # of the cluster's free CPUs, at most, for all actors together


def role_actor(ray: Any, cpus: float) -> Any:
    """The actor class for one role; health calls run in their own concurrency group."""
    return _watched(ray, RoleActor, cpus, ("wait_forever", "measure", "location"))


def loader_actor(ray: Any, cpus: float) -> Any:
    """As `role_actor`, for loaders among which there are standbys."""
    return _watched(ray, LoaderActor, cpus, ("wait_forever", "measure", "plays", "play"))


def _watched(ray: Any, role: type[RoleActor], cpus: float, names: Sequence[str]) -> Any:
    watch: Callable[[Any], Any] = ray.method(concurrency_group="watch")

    def watched(name: str) -> Any:
        def method(self: Any, *arguments: Any) -> Any:
            return getattr(role, name)(self, *arguments)

        return watch(method)

    made = type(role.__name__, (role,), {name: watched(name) for name in names})
    groups = {"watch": _WATCHERS}
    return ray.remote(
        concurrency_groups=groups, max_restarts=-1, max_task_retries=0, num_cpus=cpus
    )(made)


def registry_actor(ray: Any, clients: int) -> Any:
    """The actor class of the registry. Each client keeps one call pending among others."""
    return ray.remote(
        max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=clients * 4 + 100
    )(JobRegistryActor)


def cpus_per_actor(ray: Any, cpus: float | None, count: int) -> float:
    """CPUs that each of `count` actors reserves. Those that are asked for may be more than are
    free: only actors that wait make a cluster grow.

    Raises:
        ConfigurationError: less than 0.
    """
    free = float(ray.available_resources().get("CPU", 0.0))
    if cpus is None:
        return min(1.0, int(1000 * _CPU_SHARE * free / count) / 1000)
    if cpus < 0:
        raise ConfigurationError(f"cpus={cpus:g} must be at least 0, such as 0.25")
    if cpus * count > free:
        logging.getLogger("evenstep").warning(
            "cpus=%g for each of %d actors, and the cluster has %g CPUs free: some wait until "
            "others end or the cluster grows; without autoscaling choose at most %.3g",
            cpus,
            count,
            free,
            free / count,
        )
    return cpus
