"""The service on Ray: each role an actor, on one machine or on a cluster.

What a job decides is the same as in one process, see `evenstep.service.local`; here loaders read
ahead and constructors build while trainers train. Samples go from loaders to constructors and from
those to clients through Ray's object store, and never through the planner or the driver.

Ray itself is imported when a service is started or a client is made.
"""

from evenstep.service.ray.client import Client, RayClient
from evenstep.service.ray.service import RayService, attach, start

__all__ = ["Client", "RayClient", "RayService", "attach", "start"]
