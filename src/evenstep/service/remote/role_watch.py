"""`RoleWatch`: notices that a role's process has died, and has another one play the role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.roads import RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import Location, RolePlace, cause_of_death, located
from evenstep.service.remote.role_threads import in_thread
from evenstep.service.transport.endpoint import remove_socket

logger = logging.getLogger("evenstep")

_KEPT = 100  # restarts
_PAUSE = 1.0  # seconds between two connections to the same process


class RoleWatch:
    """See the module docstring. Used in one event loop."""

    def __init__(
        self,
        place: RolePlace,
        events: EventLog,
        warn_after: float | None,
        room: Callable[[], str] | None,
    ) -> None:
        """
        Args:
            warn_after: seconds after which it is logged that no process follows one that has died.
            room: says what there is room for, such as "the cluster has 2 CPUs free".
        """
        self.place, self._events = place, events
        self._warn_after, self._room = warn_after, room
        self._dead_since: float | None = None
        self.restarts: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        """JSON-able: the processes that have died, those that followed them, and whether these were
        standbys; when, and after how many seconds. They are numbered from 1, and `promotions` is
        the number of standbys up to here."""
        self._count = self._promotions = 0

    @property
    def name(self) -> str:
        return _name(self.place.role, self.place.known)

    @property
    def restarting(self) -> bool:
        """Whether the role is not played at the moment."""
        return self._dead_since is not None

    async def missing(self) -> str:
        """How long a role that is `restarting` has not been played, and why, as a clause."""
        since = time.monotonic() if self._dead_since is None else self._dead_since
        text = f"died {time.monotonic() - since:.0f} s ago, and no process plays its role yet"
        return text if self._room is None else f"{text}: {await in_thread(self._room)}"

    async def run(self) -> None:
        """Watches for ever.

        Raises:
            LoaderDiedError: the role is not played any more.
            EvenstepError: it could not be made again.
        """
        location = await self.successor(None)
        while True:
            try:
                await location.road.send([("wait_forever", ())]).later()
            except RoleGoneError:
                location = await self._restarted(location)

    async def successor(self, dead: Location | None) -> Location:
        """As `RolePlace.successor`.

        Raises:
            LoaderDiedError, EvenstepError: see `run`.
        """
        place = self.place
        try:
            if dead is None:
                return await in_thread(place.location)
            return await in_thread(place.successor, dead)
        except RoleGoneError as error:
            raise cause_of_death(_name(place.role, dead), error) from error

    async def _restarted(self, dead: Location) -> Location:
        begin, died = time.monotonic(), _name(self.place.role, dead)
        self._dead_since = begin
        found = await self._awaited(dead)
        self._dead_since = None
        seconds = time.monotonic() - begin
        if (found.process, found.host) == (dead.process, dead.host):
            logger.warning("the connections to %s were lost, and are there again", died)
            await asyncio.sleep(_PAUSE)
            return found
        if isinstance(dead.road, SocketRoad):
            remove_socket(dead.road.endpoint)
        logger.warning(
            "%s died; %s %s on %s plays its role after %.1f s, and no step is lost",
            *(died, "standby" if found.promoted else "process"),
            *(found.process, found.host, seconds),
        )
        self._count += 1
        self._promotions += found.promoted
        restart = {
            "number": self._count,
            "promotions": self._promotions,
            "role": self.place.role,
            "died": {"process": dead.process, "host": dead.host},
            "followed_by": {"process": found.process, "host": found.host},
            "promoted": found.promoted,
            "seconds": seconds,
            "time": time.time(),
        }
        self.restarts.append(restart)
        self._events.add("promoted" if found.promoted else "restarted", **restart)
        return found

    async def _awaited(self, dead: Location) -> Location:
        """The successor. That it is long in coming is logged."""
        search, pause = asyncio.ensure_future(self.successor(dead)), self._warn_after
        try:
            while not (await asyncio.wait([search], timeout=pause))[0]:
                logger.warning("%s %s", _name(self.place.role, dead), await self.missing())
                pause = 2 * pause if pause else None
            return search.result()
        finally:
            search.cancel()


def _name(role: str, location: Location | None) -> str:
    process, host = (None, "") if location is None else (location.process, location.host)
    return located({"role": role, "process": process, "host": host})
