"""`RoleHost`: a role in a process, and the threads in which its messages are handled.

It passes messages on to the role, which knows nothing of processes. With one thread, messages are
handled in order of arrival.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.service.messages import Message, WaitTimer
from evenstep.service.remote.channels import Answer
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_threads import RoleThreads
from evenstep.service.transport.endpoint import Endpoint, Keys
from evenstep.service.transport.frames import Frame, from_frames, to_frames
from evenstep.service.transport.server import Server

T = TypeVar("T")
U = TypeVar("U")

_END_SECONDS = 2.0  # in which threads finish their current call
_SHARED_PLANS = 16
"""Encoded plans that are kept, as every constructor asks for them."""


class Role(Protocol):
    """What every role has, besides the methods that others call."""

    def status(self) -> Mapping[str, Any]:
        """JSON-able."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class SocketHost:
    """Takes messages by sockets."""

    _server: Server | None = None

    def open_sockets(
        self,
        name: str,
        *,
        host: str | None = None,
        keys: Keys | None = None,
        port: int | None = None,
    ) -> Endpoint:
        """Takes messages by sockets from now on; see `Server`."""
        self._server = Server(self._answering, name=name, host=host, keys=keys, port=port)
        return self._server.endpoint

    @property
    def endpoint(self) -> Endpoint:
        assert self._server is not None
        return self._server.endpoint

    def submit(self, messages: Sequence[Message]) -> Future[Answer]:
        """Has messages handled, from any thread."""
        raise NotImplementedError

    def submit_frames(self, messages: Sequence[Message]) -> Future[list[Frame]]:
        """As `submit`, encoded."""
        return mapped(self.submit(messages), encoded)

    def _answering(self, frames: list[Frame]) -> Future[list[Frame]]:
        """See `evenstep.service.transport.server.Answering`."""
        try:
            messages = messages_of(frames)
        except Exception as error:
            return done(encoded(Answer(error=sendable(error))))
        return self.submit_frames(messages)


class RoleHost(SocketHost):
    """See the module docstring."""

    def __init__(self) -> None:
        self.timer = WaitTimer()
        self._role: Any = None
        self._counters_lock = threading.Lock()
        self._done: Counter[str] = Counter()
        self._threads: RoleThreads | None = None
        self._plans: dict[int, tuple[Any, list[Frame]]] = {}

    # The role

    def make_role(
        self, make: Callable[..., Any], job: Any, *arguments: Any, threads: int = 1
    ) -> None:
        """Makes the role, and gives it threads.

        Args:
            make: called with the timer, the job and the arguments.
            threads: for as many messages at a time.

        Raises:
            EvenstepError: the role could not be made.
        """
        self._role = make(self.timer, job, *arguments)
        self._threads = RoleThreads(threads)

    def close(self) -> None:
        """Closes the role and its sockets. Idempotent."""
        if self._role is not None:
            self._role.close()
        if self._server is not None:
            self._server.close()
        if self._threads is not None:
            self._threads.close()
            self._threads.join(_END_SECONDS)

    # Messages

    def answer(self, messages: Sequence[Message]) -> Answer:
        """Handles messages in order, up to one that raises."""
        begin = time.perf_counter()
        self.timer.reset()
        values: list[Any] = []
        for method, arguments, named in messages:
            try:
                values.append(getattr(self._role, method)(*map(self._own, arguments), **named))
            except BaseException as error:
                return Answer(error=sendable(error))
        stages = self.timer.waited
        build = time.perf_counter() - begin - sum(stages.values())
        with self._counters_lock:
            self._done.update(method for method, *_ in messages)
        return Answer(values, stages={**stages, "build": max(build, 0.0)})

    def submit(self, messages: Sequence[Message]) -> Future[Answer]:
        """Has messages handled in other threads."""
        if messages[0][0] == RoleHost.measure.__name__:  # also of a role that has no thread free
            return done(Answer([self.measure()]))
        if messages[0][0] == RoleHost.wait_forever.__name__:
            return Future()
        assert self._threads is not None
        return self._threads.submit(self.answer, messages)

    def submit_frames(self, messages: Sequence[Message]) -> Future[list[Frame]]:
        if messages[0][0] in (RoleHost.measure.__name__, RoleHost.wait_forever.__name__):
            return super().submit_frames(messages)
        assert self._threads is not None
        return self._threads.submit(self._answer_frames, messages)

    def measure(self) -> dict[str, Any]:
        """JSON-able: what was done since the start, by message."""
        with self._counters_lock:
            done = dict(self._done)
        return {"process": os.getpid(), "host": socket.gethostname(), "done": done}

    def wait_forever(self) -> None:
        """Never answers: who asks hears only that the process has ended."""

    def _answer_frames(self, messages: Sequence[Message]) -> list[Frame]:
        """As `answer`, encoded; counts the bytes."""
        answer = self.answer(messages)
        method, arguments, _ = messages[0]
        if method == "plan" and answer.error is None:
            frames = self._plan_frames(arguments[0], answer)
        else:
            frames = encoded(answer)
        with self._counters_lock:
            self._done[f"{messages[-1][0]}_bytes"] += sum(map(len, frames))
        return frames

    def _plan_frames(self, step: int, answer: Answer) -> list[Frame]:
        """A plan's frames, encoded once for all constructors. The planner is asked every time: it
        may have failed since."""
        plan = answer.value[0]
        if step not in self._plans or self._plans[step][0] is not plan:  # the mesh may have changed
            self._plans[step] = plan, encoded(answer)
            while len(self._plans) > _SHARED_PLANS:
                self._plans.pop(next(iter(self._plans)))
        return self._plans[step][1]

    def _own(self, argument: Any) -> Any:
        """An argument of a message; handles in a list count how long this process waits."""
        if isinstance(argument, list) and argument and isinstance(argument[0], RemoteHandle):
            return [each.using(timer=self.timer) for each in argument]
        return argument


def messages_of(frames: list[Frame]) -> list[Message]:
    """The messages that a process was sent.

    Raises:
        Exception: it cannot be unpickled, as its class is one that only the sender can import, or
            it is no list of messages.
    """
    messages: list[Message] = from_frames(frames)
    if not isinstance(messages, list) or not messages:
        raise TypeError(f"{messages!r} is no list of messages")
    for name, arguments, named in messages:
        if not (isinstance(name, str) and isinstance(arguments, tuple) and isinstance(named, dict)):
            raise TypeError(f"{name!r} with {arguments!r} and {named!r} is no message")
    return messages


def sendable(error: BaseException) -> EvenstepError:
    """An error for the caller, made from one that a role did not raise on purpose."""
    if isinstance(error, EvenstepError):
        return error
    where = traceback.extract_tb(error.__traceback__)
    place = f" was raised in {where[-1].filename}, line {where[-1].lineno}," if where else ""
    return EvenstepError(f"{described(error)}{place} in a process of the service")


def unpickled_job(job: bytes, paths: Sequence[str]) -> Any:
    """Unpickles what the process that started the service has pickled.

    Args:
        paths: where that process finds modules, such as those of the job's functions.

    Raises:
        ConfigurationError: it refers to modules that cannot be imported here.
    """
    sys.path.extend(each for each in paths if each not in sys.path and os.path.isdir(each))
    try:
        return pickle.loads(job)
    except Exception as error:
        raise ConfigurationError(
            f"the job cannot be read on {socket.gethostname()} ({described(error)}); "
            "make the modules that its functions import available there, on Ray by runtime_env in "
            "init= of RayOptions"
        ) from error


def encoded(answer: Answer) -> list[Frame]:
    """An answer's frames, or those of the error that it cannot be sent."""
    try:
        return to_frames(answer)
    except Exception as error:  # whatever pickling raises
        return to_frames(Answer(error=sendable(error)))


def mapped(future: Future[T], function: Callable[[T], U]) -> Future[U]:
    result: Future[U] = Future()
    future.add_done_callback(lambda ended: result.set_result(function(ended.result())))
    return result


def done(answer: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(answer)
    return future
