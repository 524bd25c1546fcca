"""`RoleActor`: a role of the service as a Ray actor.

Ray starts it, places it, ends it, and restarts it when its process has died. Messages arrive by its
sockets. Nobody repeats them but the sender, to the new process.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.remote.channels import SocketChannel
from evenstep.service.remote.role_host import RoleHost, sendable, unpickled_job
from evenstep.service.remote.role_place import Location
from evenstep.service.transport.endpoint import Keys


class RoleActor:
    """See the module docstring."""

    def __init__(
        self,
        make: Callable[..., Any],
        given: bytes,
        paths: Sequence[str],
        keys: Keys,
        threads: int,
    ) -> None:
        """Makes the role.

        Args:
            given: by cloudpickle, references to the job, again by cloudpickle, and to more
                arguments. Ray would drop those that it sees once the actor is made.
            paths: see `unpickled_job`.
            keys: of the role's sockets.
            threads: for as many messages at a time.
        """
        self._begin(keys)
        import ray

        job, arguments = (ray.get(reference) for reference in pickle.loads(given))
        self._location = self._made(make, job, paths, *arguments, threads=threads)

    def _begin(self, keys: Keys) -> None:
        self._born, self._keys = time.time_ns(), keys
        self._host = RoleHost()

    def _made(
        self,
        make: Callable[..., Any],
        job: bytes,
        paths: Sequence[str],
        *arguments: Any,
        threads: int,
        promoted: bool = False,
    ) -> Location | EvenstepError:
        """Makes the role; see `location`."""
        try:
            self._host.make_role(make, unpickled_job(job, paths), *arguments, threads=threads)
        except EvenstepError as error:
            return error
        except Exception as error:
            return sendable(error)
        _collate_in_one_thread()
        import ray

        host = ray.util.get_node_ip_address()
        channel = SocketChannel(self._host.open_sockets("role", host=host, keys=self._keys))
        return Location(channel, os.getpid(), socket.gethostname(), self._born, promoted)

    def location(self) -> Location | EvenstepError:
        """This process, or the error with which the role could not be made; see `RayLocator`."""
        return self._location

    def close(self) -> None:
        """Ends what the role has started, such as worker processes."""
        self._host.close()


def _collate_in_one_thread() -> None:
    """More threads of torch's would spin between batches, which are small."""
    if "torch" in sys.modules:  # a process without tensors needs no torch
        import torch

        torch.set_num_threads(1)
