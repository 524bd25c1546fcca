"""The service on Ray: each role an actor, on one machine or on a cluster.

Ray makes the roles' processes, places them, watches them and ends them; messages go over sockets,
see `evenstep.service.remote`. Ray itself is imported when a service is started or a cluster is
joined. In the process that starts the service:

    ray_service.py     `RayService` starts a job
    detached.py        `start_detached`: an actor does, and the job outlives that process
    launcher.py        creates the actors of a job, and ends them
    actor_options.py   the actor classes, with their CPUs and threads, and on which nodes they are
    discovery.py       connects to a cluster and finds the registry of a job
    locators.py        find an actor's process, which Ray restarts, or a standby takes over

In the actors:

    actors.py          `RoleActor`, a role; `LoaderActor`, a loader or a standby
    registry_actor.py  `JobRegistryActor`, the registry, and `RegistryKeeper`, which informs it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.service.backends.ray.ray_service import RayService as RayService

__getattr__, __dir__ = lazy_names(__name__)
