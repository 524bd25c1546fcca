"""`RolePlace`: the process that runs a role, and the next one when it has died.

A role that dies is restarted in another process, which draws, plans and builds the same. All
handles of a role in a process share its place, so its new process is searched for once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evenstep.errors import LoaderDiedError
from evenstep.service.remote.channels import Channel, RoleGoneError
from evenstep.service.remote.requests import Request

ATTEMPTS = 4
"""Processes of a role that get the same request. What kills four of them would kill all."""


@dataclass(frozen=True)
class Location:
    """The process that runs a role."""

    channel: Channel
    process: int | None = None
    host: str = ""
    born: int = 0
    """Nanoseconds since 1970 when it started: of two processes, the later one counts."""
    promoted: bool = False
    """Whether it was a standby before."""


class Locator(Protocol):
    """Finds the process that runs a role."""

    def locate(self, dead: Location | None) -> Location:
        """Waits for the process that runs the role now.

        Args:
            dead: the process to which connections were lost. If it is alive after all, the result
                is the same process.

        Raises:
            RoleGoneError: the role is not restarted any more.
            EvenstepError: it could not be restarted.
        """
        ...


class RolePlace:
    """See the module docstring. Can be sent to other processes."""

    def __init__(
        self, role: str, location: Location | None = None, locator: Locator | None = None
    ) -> None:
        """
        Args:
            role: such as "Source Loader 2".
            location: None if it is not known yet.
            locator: None for a role that is never restarted.
        """
        self.role = role
        self._location, self._locator = location, locator
        self._lock = threading.Lock()

    @property
    def known(self) -> Location | None:
        """The last location, without a search."""
        return self._location

    def location(self) -> Location:
        """The location; searches for it if it is not known yet.

        Raises:
            RoleGoneError, EvenstepError: see `Locator.locate`.
        """
        with self._lock:
            if self._location is None:
                self._location = self._find(None)
            return self._location

    def successor(self, dead: Location) -> Location:
        """The location after one to which connections were lost.

        Raises:
            RoleGoneError, EvenstepError: see `Locator.locate`.
        """
        with self._lock:
            if self._location is None or self._location is dead:
                dead.channel.close()  # or a job of many restarts would run out of sockets
                self._location = self._find(dead)
            return self._location

    def _find(self, dead: Location | None) -> Location:
        if self._locator is None:
            raise RoleGoneError
        return self._locator.locate(dead)

    def disconnect(self) -> None:
        """Closes connections of this process that no message uses. Idempotent."""
        if self._location is not None:
            self._location.channel.close()

    def located_by(self, locator: Locator | None) -> RolePlace:
        """The same place, for a process that uses another locator."""
        return RolePlace(self.role, self._location, locator)

    def __reduce__(self) -> tuple[Any, ...]:
        return RolePlace, (self.role, self._location, self._locator)


def located(about: Mapping[str, Any]) -> str:
    """A `role` with its `process` and `host`, as far as they are known."""
    place = "" if about["process"] is None else " (process {process} on {host})".format_map(about)
    return f"{about['role']}{place}"


def cause_of_death(
    name: str, error: BaseException | None = None, *, request: Request | None = None
) -> LoaderDiedError:
    """The error to raise when a role is gone for good.

    Args:
        error: how that was noticed.
        request: what killed several processes of the role.
    """
    how = "it ran out of memory or was killed, see its log and the system's"
    if request is not None:
        how = f"{ATTEMPTS} processes died one after another that were asked {request}: {how}"
    death = LoaderDiedError(
        f"{name} of the service died; {how}. Start the service again from the state saved last"
    )
    death.__cause__ = error
    return death
