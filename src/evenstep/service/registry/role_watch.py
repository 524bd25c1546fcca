"""`RoleWatch`: asks a role how it is, notices that its process has died, and awaits the next one.

A process that is stopped keeps its connections, so only its silence tells. Its status comes from
the role, which may be busy; what it works on and waits for comes from a thread beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from evenstep.errors import EvenstepError, described
from evenstep.service.messages import Method, message
from evenstep.service.registry.role_status import EventLog
from evenstep.service.remote.channels import (
    Answer,
    Location,
    RoleGoneError,
    RolePlace,
    SocketChannel,
    cause_of_death,
    located,
)
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_host import Role, RoleHost
from evenstep.service.remote.role_threads import in_thread
from evenstep.service.transport.endpoint import remove_socket

STATUS_LIMIT = 0.7
"""Seconds that a status waits for a role, so that it is there within a second."""
ANSWER_LIMIT = 3.0
"""Seconds in which a running process answers, even on an overloaded machine."""
_KEPT = 100  # restarts
_PAUSE = 1.0  # seconds between two connections to the same process


class RoleWatch:
    """Watches one role. Used in one event loop."""

    def __init__(
        self,
        handle: RemoteHandle,
        events: EventLog,
        warn_after: float | None,
        room: Callable[[], str] | None,
    ) -> None:
        """
        Args:
            warn_after: seconds after which a warning says that a dead process has no replacement.
            room: says what there is room for, such as "the cluster has 2 CPUs free".
        """
        self.handle, self._events = handle, events
        self._warn_after, self._room = warn_after, room
        self._dead_since: float | None = None
        self.restarts: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        """JSON-able: the processes that have died, those that replaced them, and whether these were
        standbys; when, and after how many seconds, if that is known. They are numbered from 1, and
        `promotions` is the number of standbys so far."""
        self._count = self._promotions = 0
        self._born = time.time_ns()
        self._said: dict[str, Any] = {}
        """The role's last answer."""
        self._said_at = 0.0
        self._late: dict[str, tuple[asyncio.Future[Answer], float]] = {}
        """Questions that were not answered in time. They are not asked again before they are
        answered, so that they do not pile up at a process that is stopped."""

    # How it is

    async def status(self) -> dict[str, Any]:
        """JSON-able: what the role says, and `process`. If a role says nothing within
        `STATUS_LIMIT`, its last answer, and `seconds_old` since when."""
        asked = asyncio.ensure_future(self._ask(Role.status, STATUS_LIMIT))
        asked.add_done_callback(_retrieve_error)  # the service may be closed meanwhile
        about = await self.process(STATUS_LIMIT)
        try:
            answer = await asked
        except RoleGoneError:
            return {"died": self.handle.name}
        if "died" in about:
            return about
        if answer is None:
            old = {"seconds_old": time.monotonic() - self._said_at} if self._said else {}
            return {**self._said, **old, **about}
        if answer.error is not None:
            return {**about, "failed": str(answer.error)}
        self._said, self._said_at = answer.value[0], time.monotonic()
        return {**self._said, **about}

    async def process(self, limit: float = ANSWER_LIMIT) -> dict[str, Any]:
        """JSON-able: `process`, which has what `RoleHost.measure` says. If it says nothing in
        time, `silent_seconds` has the time since it was asked; if it is dead, `died` its name.

        Args:
            limit: seconds to wait.
        """
        try:
            measured = await self._ask(RoleHost.measure, limit)
        except RoleGoneError:
            return {"died": self.handle.name}
        if measured is not None:
            return {"process": measured.value[0]}
        silent = time.monotonic() - self._late[RoleHost.measure.__name__][1]
        return {"process": self.handle.about, "silent_seconds": silent}

    async def _ask(self, method: Method[[], Any], limit: float) -> Answer | None:
        """The answer, or None if it is late. An earlier question that is not answered yet is
        awaited instead of asking again."""
        asked, since = self._late.get(method.__name__, (None, 0.0))
        if asked is None or asked.done():
            asked, since = asyncio.ensure_future(self._send(method)), time.monotonic()
            asked.add_done_callback(_retrieve_error)
        await asyncio.wait([asked], timeout=limit)
        if asked.done():
            return asked.result()
        self._late[method.__name__] = asked, since
        return None

    async def _send(self, method: Method[[], Any]) -> Answer:
        """Asks the process that runs the role now, and not its successor."""
        known = self.handle.place.known
        if known is None:  # it is being started
            raise RoleGoneError
        return await known.channel.send([message(method)]).later()

    def close(self) -> None:
        """Waits for no answer any more."""
        for asked, _ in self._late.values():
            asked.cancel()

    # Whether it lives

    @property
    def restarting(self) -> bool:
        """Whether no process runs the role at the moment."""
        return self._dead_since is not None

    async def missing(self) -> str:
        """For how long a role that is `restarting` has had no process, and why, as a clause."""
        since = time.monotonic() if self._dead_since is None else self._dead_since
        text = f"died {time.monotonic() - since:.0f} s ago, and no process plays its role yet"
        return text if self._room is None else f"{text}: {await in_thread(self._room)}"

    async def run(self) -> None:
        """Watches for ever.

        Raises:
            LoaderDiedError: the role is not restarted any more.
            EvenstepError: it could not be restarted.
        """
        location = await self.successor(None)
        while True:
            try:
                await location.channel.send([message(RoleHost.wait_forever)]).later()
            except RoleGoneError:
                location = await self._restarted(location)

    async def successor(self, dead: Location | None) -> Location:
        """As `RolePlace.successor`.

        Raises:
            LoaderDiedError, EvenstepError: see `run`.
        """
        place = self.handle.place
        try:
            if dead is None:
                return await in_thread(place.location)
            return await in_thread(place.successor, dead)
        except RoleGoneError as error:
            raise cause_of_death(located(place.role, dead), error) from error

    async def _restarted(self, dead: Location) -> Location:
        begin, died = time.monotonic(), located(self.handle.role, dead)
        self._dead_since = begin
        found = await self._awaited(dead)
        self._dead_since = None
        seconds: float | None = time.monotonic() - begin
        if (found.process, found.host) == (dead.process, dead.host):
            said = f"the connections to {died} were lost, and are there again"
            self._events.add("connected", said)
            await asyncio.sleep(_PAUSE)
            return found
        if isinstance(dead.channel, SocketChannel):
            remove_socket(dead.channel.endpoint)
        kind = "standby" if found.promoted else "process"
        follows = f"{kind} {found.process} on {found.host} plays its role"
        said = f"{died} died; {follows} after {seconds:.1f} s, and no step is lost"
        when = time.time()
        if found.born < self._born and not found.promoted:  # it happened to an earlier registry
            if self._events.told(self.handle.role, found.process):
                return found
            when, seconds = found.born / 1e9, None
            since = time.strftime("%H:%M:%S", time.localtime(when))
            said = f"{died} died before this registry started; {follows} since {since}"
        self._count += 1
        self._promotions += found.promoted
        restart = {
            "number": self._count,
            "promotions": self._promotions,
            "role": self.handle.role,
            "died": dead.about,
            "followed_by": found.about,
            "promoted": found.promoted,
            "seconds": seconds,
            "time": when,
        }
        self.restarts.append(restart)
        self._events.add("promoted" if found.promoted else "restarted", said, **restart)
        return found

    async def _awaited(self, dead: Location) -> Location:
        """The successor. Warnings are logged while there is none."""
        search, pause = asyncio.ensure_future(self.successor(dead)), self._warn_after
        try:
            while not (await asyncio.wait([search], timeout=pause))[0]:
                said = f"{located(self.handle.role, dead)} {await self.missing()}"
                self._events.add("missing", said, role=self.handle.role)
                pause = 2 * pause if pause else None
            return search.result()
        finally:
            search.cancel()


class WatchedRoles:
    """The roles of a job. Used in one event loop."""

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
        self._given: dict[str, Any] = {"events": events, "warn_after": warn_after, "room": room}
        self._on_error = on_error
        self._watches: dict[RolePlace, tuple[RoleWatch, asyncio.Task[None]]] = {}
        self._past_restarts: list[dict[str, Any]] = []
        """Of roles that have ended."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def watches(self) -> list[RoleWatch]:
        """In the order in which `follow` was given the roles."""
        return [watch for watch, _ in self._watches.values()]

    def follow(self, roles: Sequence[RemoteHandle]) -> None:
        """Watches these roles, and no others any more."""
        before, self._watches = self._watches, {}
        for handle in roles:
            watched = before.pop(handle.place, None)
            if watched is None:
                watch = RoleWatch(handle, **self._given)
                watched = watch, self._task(watch.run())
            self._watches[handle.place] = watched
        for watch, task in before.values():
            watch.close()
            task.cancel()
            self._past_restarts += watch.restarts

    def begin(self, running: Coroutine[Any, Any, None]) -> None:
        """Runs something else beside, until `close`."""
        self._tasks.append(self._task(running))

    def close(self) -> None:
        """Watches no role any more. Idempotent."""
        for task in self._tasks:
            task.cancel()
        for watch, task in self._watches.values():
            watch.close()
            task.cancel()

    async def end_silent(self, seconds: float, kill: Callable[[Mapping[str, Any]], None]) -> None:
        """Kills roles that say nothing for so long; each is followed as any that dies.

        Args:
            kill: called in a thread with a `role`, and the `about` of its handle.
        """
        while True:
            await asyncio.sleep(seconds / 4)
            watches = self.watches
            asked = await asyncio.gather(*(each.process() for each in watches))
            for watch, about in zip(watches, asked):
                if (silent := about.get("silent_seconds", 0.0)) >= seconds:
                    name = watch.handle.name
                    where = {"role": watch.handle.role, **watch.handle.about}
                    event, end = "killed", "and was killed"
                    try:
                        await in_thread(kill, where)
                    except Exception as error:  # others may be silent, too
                        event, end = "silent", f"and cannot be killed: {described(error)}"
                    said = f"{name} has said nothing for {silent:.0f} s, {end}"
                    self._given["events"].add(event, said, **where, silent_seconds=silent)

    async def locate(self, role: str, born: int) -> Location:
        """Which process runs a role.

        Args:
            born: of the `Location` to which connections are lost.

        Raises:
            LoaderDiedError: it is not restarted any more.
        """
        watch = next((each for each in self.watches if each.handle.role == role), None)
        if watch is None:
            raise cause_of_death(role)
        known = watch.handle.place.known
        if known is not None and known.born != born:
            return known
        return await watch.successor(known)

    async def restarting(self) -> list[str]:
        """Roles that no process runs at the moment, as sentences without a full stop."""
        return [f"{w.handle.name} {await w.missing()}" for w in self.watches if w.restarting]

    @property
    def restarts(self) -> list[dict[str, Any]]:
        """See `RoleWatch.restarts`, the first one first."""
        found = (*self._past_restarts, *(r for each in self.watches for r in each.restarts))
        return sorted(found, key=lambda restart: float(restart["time"]))

    def _task(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._run(running))

    async def _run(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            await running
        except EvenstepError as error:
            self._on_error(error)


def _retrieve_error(asked: asyncio.Future[Any]) -> None:
    """Retrieves the error of an answer that nobody awaits any more, which asyncio would log."""
    if not asked.cancelled():
        asked.exception()
