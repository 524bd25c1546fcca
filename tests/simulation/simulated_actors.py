"""Actors as processes of a simulated cluster, and calls that travel between all its processes.

As with Ray, calls are handled in any order, and answers may be late. When an actor dies, those who
wait for it hear so, each at its own time, and it is made again in another process; when a
connection breaks they hear the same of an actor that lives, whether it has handled the call or not.
Nothing is repeated by Ray.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import simulated_processes
from processes import Process
from simulated_asyncio import Loop
from simulated_objects import (
    ObjectRef,
    OwnerDiedError,
    Parcel,
    RayActorError,
    RayTaskError,
    Shared,
)
from simulated_world import Fiber, World, current

_RESTARTS = (0.5, 2.0, 20.0)  # seconds until an actor is made again
_LATENCIES = (0.0, 0.0004, 0.002, 0.02, 0.3, 2.5)  # seconds


class _Call:
    def __init__(self, caller: Process, method: str, arguments: Any, reply: ObjectRef) -> None:
        self.caller, self.method, self.reply = caller, method, reply
        self.arguments = Parcel(arguments)


def _resolved(arguments: Sequence[Any]) -> list[Any]:
    return [each.value() if isinstance(each, ObjectRef) else each for each in arguments]


class Actor:
    """A process that handles calls, and the next one when it has died. Its first thread only makes
    the object."""

    def __init__(
        self, cluster: Cluster, made: type, options: dict[str, Any], arguments: Any
    ) -> None:
        self.cluster = cluster
        self.name, self.namespace = options["name"], options["namespace"]
        self._class, self._given = made, Parcel(arguments)
        self.ended = options["max_restarts"] == 0
        """Whether it is not made again."""
        methods = [getattr(made, name) for name in dir(made) if not name.startswith("__")]
        self._in_loop = any(map(inspect.iscoroutinefunction, methods))
        self._threads = options["max_concurrency"]
        self.pending: dict[_Call, None] = {}
        self.lives = 0
        self._begin_process()

    def _begin_process(self) -> None:
        world = self.cluster.world
        self.lives += 1
        self._loop = Loop(world) if self._in_loop else None
        self._arrived: deque[_Call] = deque()
        self._idle: list[Any] = []
        self._instance: Any = None
        self.process = simulated_processes.start_process(
            world, self.name.partition("-")[2], self._live, None
        )
        self.process.ends.append(self)

    def _live(self) -> None:
        world = self.cluster.world
        try:
            self._instance = self._class(*_resolved(self._given.open()))
        except OwnerDiedError:  # it is about to be ended, too
            world.exit(self.process, -9)
        if self._loop is not None:
            for call in self._arrived:
                self._loop.call_soon(self._begin, call)
            self._arrived.clear()
            self._loop.run_forever()
        for number in range(self._threads):
            world.spawn(Fiber(self.process, f"call{number}", self._serve))
        world.until(lambda: False)

    def _serve(self) -> None:
        arrived, world = self._arrived, self.cluster.world
        while True:
            world.until(lambda: bool(arrived), self._idle)
            call = arrived.popleft()
            try:
                method = getattr(self._instance, call.method)
                answer = Parcel(method(*_resolved(call.arguments.open())))
            except Exception as error:
                self._answer(call, None, error)
            else:
                self._answer(call, answer)

    def _begin(self, call: _Call) -> None:
        assert self._loop is not None
        self._loop.create_task(self._handle(call))

    async def _handle(self, call: _Call) -> None:
        try:
            method = getattr(self._instance, call.method)
            answer = Parcel(await method(*_resolved(call.arguments.open())))
        except Exception as error:
            self._answer(call, None, error)
        else:
            self._answer(call, answer)

    def _answer(self, call: _Call, answer: Parcel | None, error: Exception | None = None) -> None:
        self.pending.pop(call, None)
        raised = None if error is None else RayTaskError(f"{type(error).__name__}: {error}")
        self.cluster.later(lambda: call.reply.resolve(self.cluster.world, answer, raised))

    def arrive(self, call: _Call) -> None:
        if not self.process.alive:
            self.fail(call)
        elif self._loop is not None and self._instance is not None:
            self._loop.call_soon_threadsafe(self._begin, call)
        else:
            self._arrived.append(call)
            self.cluster.world.wake(self._idle)

    def fail(self, call: _Call) -> None:
        self.pending.pop(call, None)
        error = RayActorError(f"the actor {self.name} is gone")
        self.cluster.later(lambda: call.reply.resolve(self.cluster.world, None, error))

    def release(self, process: Process) -> None:
        """The process has ended."""
        for call in list(self.pending):
            self.fail(call)
        if not self.ended:
            seconds = _RESTARTS[self.cluster.world.choices.pick(len(_RESTARTS), dull=0.8)]
            self.cluster.world.after(seconds, self._make_again)

    def _make_again(self) -> None:
        if not self.ended:
            self._begin_process()

    def cut(self, caller: Process) -> None:
        """Breaks the connection with one caller."""
        for call in [call for call in self.pending if call.caller is caller]:
            if call in self._arrived and self.cluster.world.choices.pick(2):
                self._arrived.remove(call)
            self.fail(call)
        for end in self.process.ends:
            if hasattr(end, "cut") and end is not self:
                end.cut(caller)  # its sockets


class _Owner:
    """Actors end with the process that made them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.actors = cluster, []

    def release(self, process: Process) -> None:
        for actor in self.actors:
            self.cluster.kill(actor)


class Cluster:
    """The actors of one world, and the network between all processes."""

    def __init__(self, world: World, *, late: bool, repeats: bool) -> None:
        """
        Args:
            late: whether messages may take their time, and `repeats`, arrive twice.
        """
        self.world, self._late, self._repeats = world, late, repeats
        self.actors: list[Actor] = []
        self.servers: list[Any] = []
        """See `simulated_sockets`."""
        self.owners: dict[Process, _Owner] = {}
        self.repeated = 0

    def later(self, work: Callable[[], None]) -> None:
        self.world.after(self._latency(), work)

    def _latency(self) -> float:
        return _LATENCIES[self.world.choices.pick(len(_LATENCIES), dull=0.8)] if self._late else 0.0

    def send(self, actor: Actor, method: str, arguments: Any) -> ObjectRef:
        call = _Call(current().process, method, arguments, ObjectRef())
        actor.pending[call] = None
        self.later(lambda: actor.arrive(call))
        return call.reply

    def repeats(self) -> bool:
        """Whether a message arrives twice."""
        repeats = self._repeats and self.world.choices.pick(8, dull=0.3) == 1
        self.repeated += repeats
        return repeats

    def start(self, made: type, options: dict[str, Any], arguments: Any) -> ActorHandle:
        me = current().process
        if me not in self.owners:
            owner = self.owners[me] = _Owner(self)
            me.ends.append(owner)
        actor = Actor(self, made, options, arguments)
        self.actors.append(actor)
        self.owners[me].actors.append(actor)
        return ActorHandle(actor)

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        """Ends an actor for good, or its process."""

        def end() -> None:
            actor.ended |= no_restart
            if actor.process.alive:
                self.world.exit(actor.process, -9)

        self.later(end)

    def of(self, process: Process) -> Actor | None:
        return next((actor for actor in self.actors if actor.process is process), None)


def running_cluster() -> Cluster:
    """That of the running thread, which has taken a step."""
    process = current().process
    cluster: Cluster = process.world.network
    actor = cluster.of(process)
    if actor is None or actor._loop is None:  # code between two awaits is not interrupted
        process.world.pause()
    return cluster


class ActorHandle(Shared):
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        getattr(self._actor._class, name)
        return SimpleNamespace(remote=lambda *args: running_cluster().send(self._actor, name, args))
