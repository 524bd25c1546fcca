"""How actors are declared to Ray, and how many CPUs and threads each is given.

Ray restarts actors as often as their processes die, and repeats no calls.
"""

from __future__ import annotations

import logging
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.ray.actors import RoleActor
from evenstep.service.backends.ray.registry_actor import JobRegistryActor

_CALLS = 16
"""Calls of Ray that an actor answers beside each other: where it is, and to end."""
_CPU_SHARE = 0.9  # of the cluster's free CPUs, at most, for all actors together


def role_actor(ray: Any, role: type[RoleActor], cpus: float) -> Any:
    """The actor class of a role."""
    return ray.remote(max_restarts=-1, max_task_retries=0, num_cpus=cpus, max_concurrency=_CALLS)(
        role
    )


def registry_actor(ray: Any, clients: int) -> Any:
    """The actor class of the registry, which clients ask where it is before it knows its job."""
    return ray.remote(
        max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=clients + 100
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
