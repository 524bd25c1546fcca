"""`WatchedRoles`: the roles of a job, each watched, and asked how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_inquiry import RoleInquiry
from evenstep.service.remote.role_place import Location, RolePlace, cause_of_death
from evenstep.service.remote.role_watch import RoleWatch


class WatchedRoles:
    """Those of `follow`. Used in one event loop."""

    def __init__(
        self,
        events: EventLog,
        *,
        warn_after: float | None,
        room: Callable[[], str] | None,
        on_error: Callable[[EvenstepError], None],
    ) -> None:
        """
        Args:
            events, warn_after, room: see `RoleWatch`.
            on_error: called when a role has died for good, and with the errors of `begin`.
        """
        self._events, self._on_error = events, on_error
        self._given: dict[str, Any] = {"warn_after": warn_after, "room": room}
        self.inquiries: list[RoleInquiry] = []
        self._watches: list[RoleWatch] = []
        self._watching: dict[RolePlace, asyncio.Task[None]] = {}
        self._past_restarts: list[dict[str, Any]] = []
        """Of roles that are not played any more."""
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, roles: Sequence[RemoteHandle]) -> None:
        """Watches these roles, and no others any more."""
        inquiries = {each.handle.place: each for each in self.inquiries}
        watches = {each.place: each for each in self._watches}
        places = [handle.place for handle in roles]
        for place in watches.keys() - set(places):
            inquiries[place].close()
            self._watching.pop(place).cancel()
            self._past_restarts += watches[place].restarts
        self.inquiries = [inquiries.get(h.place) or RoleInquiry(h) for h in roles]
        self._watches = [
            watches.get(place) or RoleWatch(place, self._events, **self._given) for place in places
        ]
        for watch in self._watches:
            if watch.place not in self._watching:
                self._watching[watch.place] = self._task(watch.run())

    def begin(self, running: Coroutine[Any, Any, None]) -> None:
        """Runs something else beside, until `close`."""
        self._tasks.append(self._task(running))

    def close(self) -> None:
        """Watches no role any more. Idempotent."""
        for task in (*self._tasks, *self._watching.values()):
            task.cancel()
        for inquiry in self.inquiries:
            inquiry.close()

    async def locate(self, role: str, born: int) -> Location:
        """Where a role is played.

        Args:
            born: of the `Location` to which connections are lost.

        Raises:
            LoaderDiedError: it is not played any more.
        """
        watch = next((each for each in self._watches if each.place.role == role), None)
        if watch is None:
            raise cause_of_death(role)
        known = watch.place.known
        if known is not None and known.born != born:
            return known
        return await watch.successor(known)

    async def processes(self) -> dict[str, dict[str, Any]]:
        """By role, what its process works on and waits for; see `RoleInquiry.process`."""
        inquiries = list(self.inquiries)
        said = await asyncio.gather(*(each.process() for each in inquiries))
        roles = {each.handle.role: about for each, about in zip(inquiries, said)}
        for watch in self._watches:
            if watch.restarting:
                roles[watch.place.role] = {"died": watch.name, "missing": await watch.missing()}
        return roles

    async def restarting(self) -> list[str]:
        """Roles that are not played at the moment, as sentences without a full stop."""
        return [f"{each.name} {await each.missing()}" for each in self._watches if each.restarting]

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """See `RoleWatch.restarts`, the first one first."""
        found = (*self._past_restarts, *(r for each in self._watches for r in each.restarts))
        return sorted(found, key=lambda restart: float(restart["time"]))

    def _task(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._run(running))

    async def _run(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            await running
        except EvenstepError as error:
            self._on_error(error)
