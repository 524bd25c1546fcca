"""Handles whose roles are Ray actors.

An error that a role raises on purpose comes back as an answer, so that the caller catches what was
raised, without the traceback of another process around it. The error about a dead actor names it.

Messages are sent as bytes, and so are answers without samples: plain pickle takes a fraction of the
time that Ray takes to find out how to serialize each value.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import LoaderDiedError
from evenstep.service.handles import Message, MessageName, Reply
from evenstep.service.ray.open_requests import Request
from evenstep.service.ray.priority_lock import WaitTimer

_BY_CLOUDPICKLE = ("fail", "report")
"""Messages with users' objects, whose classes other processes may be unable to import."""


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "the service on Ray needs ray: pip install 'evenstep[service]'; or choose "
            "backend='local', which runs all roles in this process"
        ) from error
    return ray


@dataclass(frozen=True)
class Answer:
    """What an actor returns."""

    value: Any = None
    """The list of the role's answers, one for each message."""
    error: Exception | None = None
    """Raised instead."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds that the answer took, by stage."""


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Messages as an actor is sent them."""
    if any(message in _BY_CLOUDPICKLE for message, _ in messages):
        encoded: bytes = import_ray().cloudpickle.dumps(list(messages))
        return encoded
    return pickle.dumps(list(messages), pickle.HIGHEST_PROTOCOL)


def decode_answer(sent: Answer | bytes) -> Answer:
    """The answer, out of what an actor returns."""
    answer: Answer = pickle.loads(sent) if isinstance(sent, bytes) else sent
    return answer


def cause_of_death(name: str, error: Exception | None = None) -> LoaderDiedError:
    """The error to raise when an actor is gone.

    Args:
        error: how Ray reports it.
    """
    death = LoaderDiedError(
        f"{name} of the service died; it ran out of memory or was killed, see its log and the "
        "system's. Start the service again from the state saved last"
    )
    death.__cause__ = error
    return death


OnWait = Callable[["RayHandle", Request, float, Sequence[Any]], None]
"""Called with the role that is waited for, what it was asked, the seconds waited, and references of
which the first that is resolved ends the wait."""


def located(about: Mapping[str, Any]) -> str:
    """A `role` with its `process` and `host`, as far as they are known."""
    place = "" if about["process"] is None else " (process {process} on {host})".format_map(about)
    return f"{about['role']}{place}"


class RayHandle:
    """A role in an actor. Can be sent to other processes."""

    def __init__(
        self,
        actor: Any,
        role: str,
        process: int | None = None,
        host: str = "",
        *,
        alarm: Any = None,
        timer: WaitTimer | None = None,
        on_answer: Callable[[Answer], None] | None = None,
        on_wait: OnWait | None = None,
        warn_after: float | None = None,
    ) -> None:
        """
        Args:
            actor: Ray's handle.
            role: such as "Source Loader 2".
            process, host: the actor's, once known.
            alarm: a reference that is resolved when any actor of the service has died. A caller
                that waits for an answer, or takes one, raises the alarm's error instead.
            timer: counts the seconds waited for answers, by message (the last of several).
            on_answer: called with each answer that is taken.
            on_wait: called when an answer has been waited for for `warn_after` seconds, and again
                each time that the wait has doubled.
        """
        self.actor, self.role, self.process, self.host = actor, role, process, host
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
        sent = self._sent([(message, arguments)])
        return RayReply(self, sent, Request.of(message, arguments), single=True)

    def send_all(self, messages: Sequence[Message]) -> Reply:
        return RayReply(self, self._sent(messages), Request.of(*messages[-1]))

    def _sent(self, messages: Sequence[Message]) -> Any:
        return self.actor.handle.remote(encode_messages(messages))

    def using(self, **options: Any) -> RayHandle:
        """A handle of the same actor with the options of one caller; see the constructor."""
        return RayHandle(self.actor, **self.about, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.actor, self.role, self.process, self.host)


class RayReply:
    """An answer that is on its way, or in Ray's object store."""

    def __init__(
        self, handle: RayHandle, reference: Any, request: Request, *, single: bool = False
    ) -> None:
        """
        Args:
            request: the last message that it answers.
            single: whether it answers one message, and the result is the answer, not a list.
        """
        self._handle, self._reference = handle, reference
        self._request, self._single = request, single

    def result(self) -> Any:
        """
        Raises:
            LoaderDiedError: the actor died, or another one of the service.
            EvenstepError: what the role raised.
        """
        ray, handle = import_ray(), self._handle
        timer = handle.timer
        noted = nullcontext() if timer is None else timer.waiting(self._request, **handle.about)
        try:
            with noted:
                self._wait_for_answer_or_alarm(ray)
                sent = ray.get(self._reference)
                if isinstance(sent, ray.ObjectRef):  # a large answer, see `PlanCache`
                    sent = ray.get(sent)
        except (ray.exceptions.RayActorError, ray.exceptions.OwnerDiedError) as error:
            raise cause_of_death(handle.name, error) from error
        answer = decode_answer(sent)
        if answer.error is not None:
            raise answer.error
        if handle.on_answer is not None:
            handle.on_answer(answer)
        return answer.value[0] if self._single else answer.value

    def _wait_for_answer_or_alarm(self, ray: Any) -> None:
        """Waits for the answer; the alarm has precedence."""
        handle = self._handle
        if handle.alarm is None and handle.on_wait is None:
            return
        alarm = [] if handle.alarm is None else [handle.alarm]
        awaited = [self._reference, *alarm]
        ready = ray.wait(alarm, timeout=0)[0] if alarm else []
        begin, limit = time.monotonic(), handle.warn_after or None
        while not ready:
            ready, _ = ray.wait(awaited, num_returns=1, timeout=limit)
            if not ready and handle.on_wait is not None:
                limit = time.monotonic() - begin
                handle.on_wait(handle, self._request, limit, awaited)
        if handle.alarm in ready:
            try:
                answer: Answer = ray.get(handle.alarm)
            except ray.exceptions.RayActorError as error:
                raise cause_of_death("the registry", error) from error
            assert answer.error is not None
            raise answer.error
