"""`RoleActor`: a role of the service as a Ray actor.

Ray makes it, places it, ends it, and makes it again when its process has died. Messages come by
its sockets; or as Ray's own calls, where sockets are not wanted. Ray repeats no message: its sender
does, to the new process.
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
from evenstep.service.backends.ray.channel import (
    SHARED_BYTES,
    PlanCache,
    register_arrays,
    register_tensors,
)
from evenstep.service.messages import Message
from evenstep.service.registry.metrics import payload_bytes
from evenstep.service.remote.channels import Answer
from evenstep.service.remote.role_host import RoleHost, sendable, unpickled_job
from evenstep.service.transport.endpoint import Keys

_BULK = ("fetch", "deliver")  # messages whose answers have samples in them


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
        self._plans = PlanCache()

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

    def handle(self, sent: bytes, born: int | None = None) -> Any:
        """Handles messages in order, up to one that raises; the answer is the list of their
        answers, or None if they are for the process that this one follows. See
        `RayChannel` and `PlanCache`."""
        if born not in (None, self._born):
            return None
        messages: Sequence[Message] = pickle.loads(sent)
        answer = self._host.answer(messages)
        bulk = next((message for message, _ in messages if message in _BULK), None)
        if answer.error is None and bulk is None:
            encoded = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            if messages[0][0] == "plan" and len(encoded) > SHARED_BYTES:
                return self._plans.reference(messages[0][1][0], answer.value[0], encoded)
            return encoded
        if bulk is not None and answer.error is None:
            self._host.count_bytes(bulk, payload_bytes(answer.value))
        register_arrays()
        if "torch" in sys.modules:  # a process without tensors needs no torch
            register_tensors()
        return answer

    def wait_forever(self) -> None:
        """Never answered: a caller that waits for it learns when this process is gone."""
        self._never.wait()

    def measure(self) -> Answer:
        """See `RoleHost.measure`."""
        return Answer([self._host.measure()])

    def close(self) -> None:
        """Ends what the role has begun, such as worker processes."""
        self._host.close()


def _collate_in_one_thread() -> None:
    """More threads of torch's would spin between batches, which are small."""
    if "torch" in sys.modules:  # a process without tensors needs no torch
        import torch

        torch.set_num_threads(1)
