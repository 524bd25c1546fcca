"""`LoaderActor`: runs a loader, or waits until one has died to take over.

In a job with standbys, all loaders and standbys are such actors, and any of them can run any
loader. One that Ray restarts is a standby: another actor runs its former loader by now, or this one
does when it is asked to.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Sequence

from evenstep.errors import EvenstepError
from evenstep.service.backends.ray.actors import RoleActor
from evenstep.service.job.loader_job import LoaderPart
from evenstep.service.job.roles import LOADER_THREADS
from evenstep.service.remote.role_host import unpickled_job
from evenstep.service.remote.role_makers import make_part, make_standby
from evenstep.service.remote.role_place import Location
from evenstep.service.source_loader.preparer import Preparer
from evenstep.service.transport.endpoint import Keys


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
        self._preparer: Preparer | None = None
        if part is None or ray.get_runtime_context().was_current_actor_reconstructed:
            self._preparer = make_standby([unpickled_job(self._whole, paths)])
        else:
            self.play(part)

    def location(self) -> Location | EvenstepError:
        if self._own is not None:  # it may have been restarted, or another thread may be at it
            self.play(self._own)
        return self._location

    def plays(self) -> tuple[int | None, int, str]:
        """The loader that it runs, None if it is a standby; its process and host."""
        return self._number, os.getpid(), socket.gethostname()

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
                    self._preparer,
                    threads=LOADER_THREADS,
                    promoted=part != self._own,
                )
            return self._location if self._number == part.number else None
