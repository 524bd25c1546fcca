"""`RoleActor`: a role of the service as a Ray actor.

Ray starts it, places it, ends it, and restarts it when its process has died. Messages arrive by its
sockets; or as Ray's own calls, if sockets are not wanted. Ray repeats no message: the sender does,
to the new process.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.remote.channels import Answer
from evenstep.service.remote.role_host import RoleHost, sendable, unpickled_job
from evenstep.service.transport.endpoint import Keys


class RoleActor:
    """See the module docstring."""

    def __init__(
        self,
        make: Callable[..., Any],
        given: bytes,
        paths: Sequence[str],
        keys: Keys | None,
        threads: int,
    ) -> None:
        """Makes the role.

        Args:
            given: by cloudpickle, references to the job, again by cloudpickle, and to more
                arguments. Ray would drop those that it sees once the actor is made.
            paths: see `unpickled_job`.
            keys: of the role's sockets; None for a role without sockets.
        """
        self._begin(keys)
        import ray

        job, arguments = (ray.get(reference) for reference in pickle.loads(given))
        self._location = self._made(make, job, paths, *arguments, threads=threads)

    def _begin(self, keys: Keys | None) -> None:
        self._born, self._keys = time.time_ns(), keys
        self._host = RoleHost()
        self._never = threading.Event()

    def _made(
        self,
        make: Callable[..., Any],
        job: bytes,
        paths: Sequence[str],
        *arguments: Any,
        threads: int,
        promoted: bool = False,
    ) -> Answer:
        """Makes the role; see `location`."""
        try:
            self._host.make_role(make, unpickled_job(job, paths), *arguments, threads=threads)
        except EvenstepError as error:
            return Answer(error=error)
        except Exception as error:
            return Answer(error=sendable(error))
        _collate_in_one_thread()
        endpoint = None
        if self._keys is not None:
            import ray

            host = ray.util.get_node_ip_address()
            endpoint = self._host.open_sockets("role", host=host, keys=self._keys)
        return Answer((os.getpid(), socket.gethostname(), self._born, endpoint, promoted))

    def location(self) -> Answer:
        """This process, its host, when it began, where it listens, and whether it was a standby; or
        the error with which the role could not be made. See `RayLocator`."""
        return self._location

    def handle(self, sent: bytes, born: int | None = None) -> list[bytes] | None:
        """Handles messages in order, up to one that raises. The frames of the answer; None if the
        messages are for the process that this one replaces. See `RayChannel`."""
        if born not in (None, self._born):
            return None
        return [bytes(frame) for frame in self._host.answer_frames(pickle.loads(sent))]

    def wait_forever(self) -> None:
        """Never answered: a caller that waits for it learns when this process is gone."""
        self._never.wait()

    def measure(self) -> Answer:
        """See `RoleHost.measure`."""
        return Answer([self._host.measure()])

    def close(self) -> None:
        """Ends what the role has started, such as worker processes."""
        self._host.close()


def _collate_in_one_thread() -> None:
    """More threads of torch's would spin between batches, which are small."""
    if "torch" in sys.modules:  # a process without tensors needs no torch
        import torch

        torch.set_num_threads(1)
