"""Actors as processes of a simulated cluster, and calls that travel between all its processes.

As with Ray, an actor of one thread handles the calls of one caller in their order, and those of
different callers in any; one with several threads or an event loop in any order. Answers may be
late. When an actor dies, those who wait for it hear so, each at its own time, and it is made again
in another process; when a connection breaks they hear the same of an actor that lives, whether it
has handled the call or not. Nothing is repeated by Ray; that a call arrives twice tries what roles
promise.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import simulated_processes
from os_process import Process
from simulated_asyncio import Loop
from simulated_objects import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectRef,
    OwnerDiedError,
    Parcel,
    RayError,
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
        self._threads = {None: options.get("max_concurrency", 1)}
        self._threads.update(options.get("concurrency_groups", {}))
        self.ordered = not self._in_loop and self._threads[None] == 1
        self.pending: dict[_Call, None] = {}
        self.lives = 0
        self._begin_process()

    def _begin_process(self) -> None:
        world = self.cluster.world
        self.lives += 1
        self._loop = Loop(world) if self._in_loop else None
        self._arrived: dict[str | None, deque[_Call]] = {g: deque() for g in self._threads}
        self._idle: dict[str | None, list[Any]] = {group: [] for group in self._threads}
        self.last_arrival: dict[Process, float] = {}
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
            for call in self._arrived[None]:
                self._loop.call_soon(self._begin, call)
            self._arrived[None].clear()
            self._loop.run_forever()
        for group, count in self._threads.items():
            for number in range(count):
                name = f"{group or 'handle'}{number}"
                world.spawn(Fiber(self.process, name, lambda group=group: self._serve(group)))
        world.until(lambda: False)

    def _serve(self, group: str | None) -> None:
        arrived, world = self._arrived[group], self.cluster.world
        while True:
            world.until(lambda: bool(arrived), self._idle[group])
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
            self.fail(call, ActorDiedError if self.ended else ActorUnavailableError)
        elif self._loop is not None and self._instance is not None:
            self._loop.call_soon_threadsafe(self._begin, call)
        else:
            method = getattr(self._class, call.method)
            group = getattr(method, "concurrency_group", None)
            self._arrived[group].append(call)
            self.cluster.world.wake(self._idle[group])

    def fail(self, call: _Call, kind: type[RayError]) -> None:
        self.pending.pop(call, None)
        error = kind(f"the actor {self.name} is gone")
        self.cluster.later(lambda: call.reply.resolve(self.cluster.world, None, error))

    def release(self, process: Process) -> None:
        """The process has ended."""
        for call in list(self.pending):
            self.fail(call, ActorDiedError if self.ended else ActorUnavailableError)
        if not self.ended:
            seconds = _RESTARTS[self.cluster.world.choices.pick(len(_RESTARTS), dull=0.8)]
            self.cluster.world.after(seconds, self._make_again)

    def _make_again(self) -> None:
        if not self.ended:
            self._begin_process()

    def cut(self, caller: Process) -> None:
        """Breaks the connection with one caller."""
        for call in [call for call in self.pending if call.caller is caller]:
            for calls in self._arrived.values():
                if call in calls and self.cluster.world.choices.pick(2):
                    calls.remove(call)
            self.fail(call, ActorUnavailableError)


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
        self.owners: dict[Process, _Owner] = {}
        self.repeated = 0

    def later(self, work: Callable[[], None]) -> None:
        self.world.after(self._latency(), work)

    def _latency(self) -> float:
        return _LATENCIES[self.world.choices.pick(len(_LATENCIES), dull=0.8)] if self._late else 0.0

    def send(self, actor: Actor, method: str, arguments: Any) -> ObjectRef:
        me, world = current().process, self.world
        call = _Call(me, method, arguments, ObjectRef())
        actor.pending[call] = None
        self._transmit(actor, call)
        if self._repeats and method == "handle" and not world.choices.pick(8, dull=0.3) - 1:
            again = _Call(me, method, arguments, ObjectRef())
            self.repeated += 1
            self._transmit(actor, again)
        return call.reply

    def _transmit(self, actor: Actor, call: _Call) -> None:
        world = self.world
        due = world.now + self._latency()
        if actor.ordered:
            due = max(due, actor.last_arrival.get(call.caller, 0.0))
            actor.last_arrival[call.caller] = due
        world.after(due - world.now, lambda: actor.arrive(call))

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
