"""The actors of Ray that roles run in: `RoleActor`, and `LoaderActor` for loaders and standbys.

Ray starts an actor, places it, ends it, and restarts it when its process has died. Messages arrive
by its sockets. Nobody repeats them but the sender, to the new process.

In a job with standbys, all loaders and standbys are `LoaderActor`s: one runs a loader, or waits
until one has died to take over, and any of them can run any loader. One that Ray restarts is a
standby: another actor runs its former loader by now, or this one does when it is asked to.
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
from evenstep.service.job.roles import LOADER_THREADS
from evenstep.service.job.source_layout import LoaderPart
from evenstep.service.remote.channels import Location, SocketChannel
from evenstep.service.remote.role_host import RoleHost, sendable, unpickled_job
from evenstep.service.remote.role_makers import make_part, make_standby
from evenstep.service.source_loader.source_loader import Standby
from evenstep.service.transport.endpoint import Keys


class RoleActor:
    """See the module docstring."""

    def __init__(
        self, make: Callable[..., Any], given: bytes, paths: Sequence[str], keys: Keys, threads: int
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


class LoaderActor(RoleActor):
    """See the module docstring."""

    def __init__(
        self, given: bytes, paths: Sequence[str], keys: Keys, part: LoaderPart | None
    ) -> None:
        """
        Args:
            given: by cloudpickle, a reference to the job of a loader of all sources, again by
                cloudpickle.
            paths, keys: see `RoleActor`.
            part: the loader to run at once; None for a standby.
        """
        self._begin(keys)
        import ray

        self._whole = ray.get(pickle.loads(given))
        self._paths = paths
        self._playing = threading.Lock()
        self._own = part
        self._number: int | None = None
        self._standby: Standby | None = None
        if part is None or ray.get_runtime_context().was_current_actor_reconstructed:
            # One that has died opens its own sources, once it is known which they are.
            whole = unpickled_job(self._whole, paths)
            self._standby = make_standby([whole], opens=part is None)
        else:
            self.play(part)

    def location(self) -> Location | EvenstepError:
        if self._own is not None:  # it may have been restarted, or another thread may be at it
            self.play(self._own)
        return self._location

    def plays(self) -> tuple[int | None, int, str, int]:
        """The loader that it runs, None if it is a standby; its process and host, and the sources
        that a standby has open."""
        opened = 0 if self._standby is None else self._standby.opened
        return self._number, os.getpid(), socket.gethostname(), opened

    def play(self, part: LoaderPart) -> Location | EvenstepError | None:
        """Runs a loader from now on; see `location`. None if it runs another one."""
        with self._playing:
            if self._number is None:
                self._number = part.number
                self._location = self._made(
                    make_part,
                    self._whole,
                    self._paths,
                    part,
                    self._standby,
                    threads=LOADER_THREADS,
                    promoted=part != self._own,
                )
            return self._location if self._number == part.number else None
