"""`ActorLoader`: a loader of a job on Ray, as the process that starts the service sees it."""

from __future__ import annotations

from collections.abc import Callable

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.source_loader import LoaderJob


class ActorLoader:
    """An `OwnedLoader`."""

    def __init__(
        self,
        job: LoaderJob,
        handle: RemoteHandle,
        wait: Callable[[], None] | None,
        end: Callable[[], None],
    ) -> None:
        """
        Args:
            wait: returns when its sources are open; None if they are.
        """
        self.job, self._handle = job, handle
        self._wait, self._end = wait, end

    def handle(self) -> RemoteHandle:
        """The loader, once its sources are open.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
        """
        if self._wait is not None:
            self._wait()
            self._wait = None
        return self._handle

    def ask_to_end(self) -> None:
        """Nothing: `end` does not take long."""

    def end(self) -> None:
        """Ends its actor. Idempotent."""
        self._end()
        if self._handle.place.known is not None:
            self._handle.place.known.road.close()
