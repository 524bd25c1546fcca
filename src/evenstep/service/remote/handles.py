"""Handles of roles in other processes or threads.

An error that a role raises on purpose comes back as an answer, so the caller catches exactly that
error, without the traceback of another process. If the role's process dies, unanswered requests are
sent again to the process that replaces it. If the role is not restarted, the error names it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from evenstep.service.messages import Message, Method, P, Reply, T, WaitTimer, message, request_text
from evenstep.service.remote.channels import (
    ATTEMPTS,
    NOWHERE,
    Answer,
    Channel,
    Location,
    Locator,
    RoleGoneError,
    RolePlace,
    cause_of_death,
    located,
)

if TYPE_CHECKING:
    from evenstep.service.client.remote_client import ServiceMonitor

logger = logging.getLogger("evenstep")

_MONITOR_INTERVAL = 0.5  # seconds between looks at a monitor

OnWait = Callable[["RemoteHandle", str, float], None]
"""Called with the role that is waited for, what it was asked, and the seconds waited."""


def warn_of_wait(who: str) -> OnWait:
    """Logs that `who` waits, such as "rank 3"."""

    def warn(waited_for: RemoteHandle, request: str, seconds: float) -> None:
        logger.warning(
            "%s has waited %.0f s for %s of %s; `evenstep service status` says which roles are "
            "silent or restarting",
            *(who, seconds, request, waited_for.name),
        )

    return warn


class RemoteHandle:
    """A role in other threads or in another process. Can be sent to other processes."""

    def __init__(
        self,
        place: RolePlace,
        *,
        monitor: ServiceMonitor | None = None,
        timer: WaitTimer | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        on_wait: OnWait | None = None,
        warn_after: float | None = None,
    ) -> None:
        """
        Args:
            monitor: a caller that waits for an answer, or takes one, raises its error instead.
            timer: counts the seconds waited for answers, by message (the last of several).
            on_answer: called with each answer that is taken.
            on_wait: called when a wait for an answer has lasted `warn_after` seconds, even while no
                process runs the role, and again each time that the wait has doubled.
        """
        self.place = place
        self.monitor, self.timer, self.on_answer = monitor, timer, on_answer
        self.on_wait, self.warn_after = on_wait, warn_after

    @classmethod
    def at(
        cls, role: str, channel: Channel, process: int | None = None, host: str = ""
    ) -> RemoteHandle:
        """A role that is never restarted."""
        return cls(RolePlace(role, Location(channel, process, host)))

    @property
    def role(self) -> str:
        """Such as "Source Loader 2"."""
        return self.place.role

    @property
    def channel(self) -> Channel:
        """To the process that runs the role."""
        return self.place.location().channel

    @property
    def name(self) -> str:
        """Role, process and host, for messages."""
        return located(self.role, self.place.known)

    @property
    def about(self) -> dict[str, Any]:
        """JSON-able: the process that runs it."""
        return (self.place.known or NOWHERE).about

    def send(self, method: Method[P, T], *args: P.args, **named: P.kwargs) -> Reply[T]:
        return RemoteReply(self, [message(method, *args, **named)], single=True)

    def send_all(self, messages: Sequence[Message]) -> Reply[list[Any]]:
        return RemoteReply(self, messages)

    def using(self, **options: Any) -> RemoteHandle:
        """A handle of the same role with the options of one caller; see the constructor."""
        return RemoteHandle(self.place, **options)

    def located_by(self, locator: Locator | None) -> RemoteHandle:
        """A handle of the same role with another locator."""
        return RemoteHandle(RolePlace(self.role, self.place.known, locator))

    def __eq__(self, other: object) -> bool:
        """Whether it is a handle of the same role, of which a job has one of each name."""
        return isinstance(other, RemoteHandle) and other.role == self.role

    def __hash__(self) -> int:
        return hash(self.role)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteHandle, (self.place,)


class RemoteReply:
    """An answer that is on its way, or has arrived."""

    def __init__(
        self, handle: RemoteHandle, messages: Sequence[Message], *, single: bool = False
    ) -> None:
        """
        Args:
            single: whether it answers one message, and the result is the answer, not a list.
        """
        self._handle, self._messages, self._single = handle, messages, single
        try:
            self._location = handle.place.location()
        except RoleGoneError as error:
            raise cause_of_death(handle.name, error) from error
        self._pending = self._location.channel.send(messages)
        self._answer: Answer | None = None

    def result(self) -> Any:
        """
        Raises:
            LoaderDiedError: the role's process died and is not replaced, or another role's is not.
            EvenstepError: what the role raised.
        """
        handle, timer = self._handle, self._handle.timer
        if self._answer is None:
            begin = time.perf_counter()
            self._answer = self._awaited()
            if timer is not None:
                timer.add(self._messages[-1][0], time.perf_counter() - begin)
        answer = self._answer
        if answer.error is not None:
            raise answer.error
        if handle.on_answer is not None:
            handle.on_answer(answer)
        return answer.value[0] if self._single else answer.value

    def _awaited(self) -> Answer:
        handle = self._handle
        self._begin = time.monotonic()
        self._warn_at = self._begin + (handle.warn_after or math.inf)
        try:
            for _ in range(ATTEMPTS):
                try:
                    if self._watches:
                        self._watch(self._pending.wait)
                    return self._pending.answer()
                except RoleGoneError:
                    self._location = self._successor()
                    self._pending = self._location.channel.send(self._messages)
        except RoleGoneError as error:
            self._raise_failure()  # which may know why
            raise cause_of_death(handle.name, error) from error
        raise cause_of_death(handle.name, request=request_text(self._messages[-1]))

    def _raise_failure(self) -> None:
        monitor = self._handle.monitor
        if monitor is not None and monitor.error is not None:
            raise monitor.error

    @property
    def _watches(self) -> bool:
        """Whether it must do anything while it waits."""
        return self._handle.monitor is not None or self._handle.on_wait is not None

    def _successor(self) -> Location:
        """The process that replaces the one that has died."""
        place, dead = self._handle.place, self._location
        if not self._watches:
            return place.successor(dead)
        found: Future[Location] = Future()
        ended = threading.Event()

        def search() -> None:
            try:
                found.set_result(place.successor(dead))
            except BaseException as error:
                found.set_exception(error)
            ended.set()

        threading.Thread(target=search, name="evenstep-successor", daemon=True).start()
        self._watch(ended.wait)
        return found.result()

    def _watch(self, comes: Callable[[float], bool]) -> None:
        """Waits for something. An error of the monitor comes first, and long waits are reported.

        Args:
            comes: waits for it for so many seconds at most, and says whether it has come.
        """
        handle = self._handle
        while True:
            self._raise_failure()
            if comes(max(min(self._warn_at - time.monotonic(), _MONITOR_INTERVAL), 0.0)):
                return
            now = time.monotonic()
            if now >= self._warn_at and handle.on_wait is not None:
                waited = now - self._begin
                handle.on_wait(handle, request_text(self._messages[-1]), waited)
                self._warn_at = now + waited
