"""Handles of roles in other processes or threads.

An error that a role raises on purpose comes back as an answer, so that the caller catches what was
raised, without the traceback of another process around it. The error about a dead role names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from evenstep.errors import LoaderDiedError
from evenstep.service.handles import Message, MessageName, Reply
from evenstep.service.remote.open_requests import Request
from evenstep.service.remote.roads import Answer, PendingAnswer, Road, RoleGoneError
from evenstep.service.remote.wait_timer import WaitTimer


def cause_of_death(name: str, error: BaseException | None = None) -> LoaderDiedError:
    """The error to raise when a role's process is gone.

    Args:
        error: how that was noticed.
    """
    death = LoaderDiedError(
        f"{name} of the service died; it ran out of memory or was killed, see its log and the "
        "system's. Start the service again from the state saved last"
    )
    death.__cause__ = error
    return death


OnWait = Callable[["RemoteHandle", Request, float, Sequence[PendingAnswer]], None]
"""Called with the role that is waited for, what it was asked, the seconds waited, and the answers
of which the first that is there ends the wait."""


def located(about: Mapping[str, Any]) -> str:
    """A `role` with its `process` and `host`, as far as they are known."""
    place = "" if about["process"] is None else " (process {process} on {host})".format_map(about)
    return f"{about['role']}{place}"


class Alarm:
    """A question to the registry that it answers when any role of the service has died."""

    def __init__(self, registry: RemoteHandle) -> None:
        self.pending = registry.road.send([("failed", ())])

    def error(self) -> Exception | None:
        """What has happened; None if nothing has."""
        return self.answered() if self.pending.first_of((), 0.0) is not None else None

    def answered(self) -> Exception:
        try:
            error = self.pending.answer().error
        except RoleGoneError as gone:
            return cause_of_death("the registry", gone)
        assert error is not None
        return error


class RemoteHandle:
    """A role in other threads or in another process. Can be sent to other processes."""

    def __init__(
        self,
        role: str,
        road: Road,
        process: int | None = None,
        host: str = "",
        *,
        alarm: Alarm | None = None,
        timer: WaitTimer | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        on_wait: OnWait | None = None,
        warn_after: float | None = None,
    ) -> None:
        """
        Args:
            role: such as "Source Loader 2".
            road: to it.
            process, host: the role's, once known.
            alarm: a caller that waits for an answer, or takes one, raises its error instead.
            timer: counts the seconds waited for answers, by message (the last of several).
            on_answer: called with each answer that is taken.
            on_wait: called when an answer has been waited for for `warn_after` seconds, and again
                each time that the wait has doubled.
        """
        self.role, self.road, self.process, self.host = role, road, process, host
        self.alarm, self.timer, self.on_answer = alarm, timer, on_answer
        self.on_wait, self.warn_after = on_wait, warn_after

    @property
    def name(self) -> str:
        """Role, process and host, for messages."""
        return located(self.about)

    @property
    def about(self) -> dict[str, Any]:
        """JSON-able: what `located` needs."""
        return {"role": self.role, "process": self.process, "host": self.host}

    def send(self, message: MessageName, *arguments: Any) -> Reply:
        pending = self.road.send([(message, arguments)])
        return RemoteReply(self, pending, Request.of(message, arguments), single=True)

    def send_all(self, messages: Sequence[Message]) -> Reply:
        return RemoteReply(self, self.road.send(messages), Request.of(*messages[-1]))

    async def ask(self, message: MessageName, *arguments: Any) -> Answer:
        """The answer to one message, in an event loop.

        Raises:
            RoleGoneError: the role's process has ended.
        """
        return await self.road.send([(message, arguments)]).later()

    def using(self, **options: Any) -> RemoteHandle:
        """A handle of the same role with the options of one caller; see the constructor."""
        return RemoteHandle(self.role, self.road, self.process, self.host, **options)

    def at(self, process: int, host: str) -> RemoteHandle:
        """A handle of the same role, whose process is known."""
        return RemoteHandle(self.role, self.road, process, host)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteHandle, (self.role, self.road, self.process, self.host)


class RemoteReply:
    """An answer that is on its way, or has come."""

    def __init__(
        self,
        handle: RemoteHandle,
        pending: PendingAnswer,
        request: Request,
        *,
        single: bool = False,
    ) -> None:
        """
        Args:
            request: the last message that it answers.
            single: whether it answers one message, and the result is the answer, not a list.
        """
        self._handle, self._pending = handle, pending
        self._request, self._single = request, single

    def result(self) -> Any:
        """
        Raises:
            LoaderDiedError: the role's process died, or another one of the service.
            EvenstepError: what the role raised.
        """
        handle, timer = self._handle, self._handle.timer
        noted = nullcontext() if timer is None else timer.waiting(self._request, **handle.about)
        try:
            with noted:
                self._wait_for_answer_or_alarm()
                answer = self._pending.answer()
        except RoleGoneError as error:
            raise cause_of_death(handle.name, error) from error
        if answer.error is not None:
            raise answer.error
        if handle.on_answer is not None:
            handle.on_answer(answer)
        return answer.value[0] if self._single else answer.value

    def _wait_for_answer_or_alarm(self) -> None:
        """Waits for the answer; the alarm has precedence."""
        handle, alarm = self._handle, self._handle.alarm
        if alarm is None and handle.on_wait is None:
            return
        others = [] if alarm is None else [alarm.pending]
        error = None if alarm is None else alarm.error()
        begin, limit, first = time.monotonic(), handle.warn_after or None, None
        while error is None and first is None:
            first = self._pending.first_of(others, limit)
            if first is None and handle.on_wait is not None:
                limit = time.monotonic() - begin
                handle.on_wait(handle, self._request, limit, [self._pending, *others])
            elif alarm is not None and first is alarm.pending:
                error = alarm.answered()
        if error is not None:
            raise error
