"""The service on Ray: each role an actor, on one machine or on a cluster.

What a job decides is the same as in one process, see `evenstep.service.local`; here loaders read
ahead and constructors build while trainers train. Ray itself is imported when a service is started
or a client is made. In the process that starts the service:

    service.py        `RayService` starts a job; `attach` looks at one that runs
    launcher.py       creates the actors of a job, in order, and ends them
    actor_options.py  the actor classes, with their CPUs and threads

In the actors:

    actors.py         `RoleActor`, which passes messages on to one role
    priority_lock.py  messages before background fill; how long each message waited
    plan_cache.py     large plans, put once into the object store
    registry.py       `JobRegistry`, which trainers find by name, and which watches all other actors
    role_inquiry.py   asks a role how it is, and does not wait for ever
    waits.py          who waits for whom, out of what all roles say
    common_state.py   where the ranks of a trainer meet to save

In trainers' processes:

    client.py         `Client`
    discovery.py      connects to a cluster and finds the registry of a job
    wait_warnings.py  logs which role keeps a client waiting

On both ends of a message:

    handles.py        `RayHandle` and its replies; Ray itself, or how to install it
    open_requests.py  what a process works on, and what it waits for
    serializers.py    arrays and tensors as copies that the receiver owns
"""

from evenstep.service.ray.client import Client, RayClient
from evenstep.service.ray.service import RayService, attach

__all__ = ["Client", "RayClient", "RayService", "attach"]
