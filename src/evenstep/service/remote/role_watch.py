"""`RoleWatch`: notices that a role's process has died, and has another one play the role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
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

    def __init__(self, place: RolePlace, events: EventLog) -> None:
        self.place, self._events = place, events
        self.restarting = False
        self.restarts: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        """JSON-able: the processes that have died, those that followed them, and whether these were
        standbys; when, and after how many seconds. They are numbered from 1, and `promotions` is
        the number of standbys up to here."""
        self._count = self._promotions = 0

    @property
    def name(self) -> str:
        return _name(self.place.role, self.place.known)

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
        self.restarting = True
        found = await self.successor(dead)
        self.restarting = False
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


def _name(role: str, location: Location | None) -> str:
    process, host = (None, "") if location is None else (location.process, location.host)
    return located({"role": role, "process": process, "host": host})
