"""What the service uses of Ray, simulated: actors as processes, and calls that travel.

As Ray's: an actor of one thread handles the calls of one caller in their order, and those of
different callers in any; one with several threads or an event loop in any order. Answers may be
late. When an actor dies, those who wait for it hear so, each at its own time; when a connection
breaks they hear the same of an actor that lives, whether it has handled the call or not. Nothing is
repeated by Ray; that a call arrives twice tries what roles promise.
"""

from __future__ import annotations

import asyncio
import copyreg
import inspect
import io
import pickle
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import simulated_processes
from os_process import Process
from simulated_asyncio import Loop
from simulated_world import Fiber, Killed, World, current

_LATENCIES = (0.0, 0.0004, 0.002, 0.02, 0.3, 2.5)  # seconds


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ActorDiedError(RayActorError):
    pass


class ActorUnavailableError(RayActorError):
    pass


class RayTaskError(RayError):
    pass


class OwnerDiedError(RayError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


# What travels is copied, but for handles and references.


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.passed: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (ActorHandle, ObjectRef)):
            self.passed.append(obj)
            return len(self.passed) - 1
        return None


class _Parcel:
    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(value)
        self._data, self._passed = file.getvalue(), pickler.passed

    def open(self) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(self._data))
        unpickler.persistent_load = self._passed.__getitem__  # type: ignore[method-assign]
        return unpickler.load()


class ObjectRef:
    """A value that is there, will be, or cannot come any more."""

    def __init__(self, owner: Process | None = None) -> None:
        """
        Args:
            owner: the value is lost when this process ends.
        """
        self._owner = owner
        self._parcel: _Parcel | None = None
        self._error: RayError | None = None
        self.done = False
        self.waiters: list[Any] = []
        self._told: list[tuple[Loop, asyncio.Future[Any]]] = []

    def resolve(self, world: World, parcel: _Parcel | None, error: RayError | None = None) -> None:
        if self.done:
            return
        self.done, self._parcel, self._error = True, parcel, error
        world.wake(self.waiters)
        for loop, future in self._told:
            loop.call_soon_threadsafe(self._tell, future)

    def value(self) -> Any:
        if self._owner is not None and not self._owner.alive:
            raise OwnerDiedError("the owner of an object has died")
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._parcel is not None
        return self._parcel.open()

    def _tell(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            try:
                future.set_result(self.value())
            except RayError as error:
                future.set_exception(error)

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        future = loop.create_future()
        if self.done:
            self._tell(future)
        else:
            self._told.append((loop, future))
        return future.__await__()


class _Call:
    def __init__(self, caller: Process, method: str, arguments: Any, reply: ObjectRef) -> None:
        self.caller, self.method, self.reply = caller, method, reply
        self.arguments = _Parcel(arguments)


class Actor:
    """A process that handles calls. Its first thread only makes the object."""

    def __init__(self, cluster: Cluster, made: type, options: dict[str, Any]) -> None:
        self.cluster, world = cluster, cluster.world
        self.name, self.namespace = options["name"], options["namespace"]
        self._class = made
        methods = [getattr(made, name) for name in dir(made) if not name.startswith("__")]
        self._loop = Loop(world) if any(map(inspect.iscoroutinefunction, methods)) else None
        self._threads = {None: options.get("max_concurrency", 1)}
        self._threads.update(options.get("concurrency_groups", {}))
        self.ordered = self._loop is None and self._threads[None] == 1
        self._arrived: dict[str | None, deque[_Call]] = {g: deque() for g in self._threads}
        self._idle: dict[str | None, list[Any]] = {group: [] for group in self._threads}
        self.pending: dict[_Call, None] = {}
        self.last_arrival: dict[Process, float] = {}
        self._instance: Any = None
        self.process = simulated_processes.start_process(
            world, self.name.partition("-")[2], self._live, None
        )
        self.process.ends.append(self)

    def _live(self) -> None:
        world = self.cluster.world
        self._instance = self._class()
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
                answer = _Parcel(method(*_resolved(call.arguments.open())))
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
            answer = _Parcel(await method(*_resolved(call.arguments.open())))
        except Exception as error:
            self._answer(call, None, error)
        else:
            self._answer(call, answer)

    def _answer(self, call: _Call, answer: _Parcel | None, error: Exception | None = None) -> None:
        self.pending.pop(call, None)
        raised = None if error is None else RayTaskError(f"{type(error).__name__}: {error}")
        self.cluster.later(lambda: call.reply.resolve(self.cluster.world, answer, raised))

    def arrive(self, call: _Call) -> None:
        if not self.process.alive:
            self.fail(call, ActorDiedError)
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
            self.fail(call, ActorDiedError)

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

    def start(self, made: type, options: dict[str, Any]) -> ActorHandle:
        me = current().process
        if me not in self.owners:
            owner = self.owners[me] = _Owner(self)
            me.ends.append(owner)
        actor = Actor(self, made, options)
        self.actors.append(actor)
        self.owners[me].actors.append(actor)
        return ActorHandle(actor)

    def kill(self, actor: Actor) -> None:
        self.later(lambda: self.world.exit(actor.process, -9))

    def of(self, process: Process) -> Actor | None:
        return next((actor for actor in self.actors if actor.process is process), None)


def _cluster() -> Cluster:
    """That of the running thread, which has taken a step."""
    process = current().process
    cluster: Cluster = process.world.network
    actor = cluster.of(process)
    if actor is None or actor._loop is None:  # code between two awaits is not interrupted
        process.world.pause()
    return cluster


class ActorHandle:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        getattr(self._actor._class, name)
        return SimpleNamespace(remote=lambda *args: _cluster().send(self._actor, name, args))


class _ActorClass:
    def __init__(self, made: type, options: dict[str, Any]) -> None:
        self._made, self._options = made, options

    def options(self, **more: Any) -> _ActorClass:
        return _ActorClass(self._made, {**self._options, **more})

    def remote(self) -> ActorHandle:
        return _cluster().start(self._made, self._options)


def remote(**options: Any) -> Callable[[type], _ActorClass]:
    return lambda made: _ActorClass(made, options)


def method(*, concurrency_group: str) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        function.concurrency_group = concurrency_group
        return function

    return mark


def _resolved(arguments: Sequence[Any]) -> list[Any]:
    return [each.value() if isinstance(each, ObjectRef) else each for each in arguments]


def put(value: Any) -> ObjectRef:
    cluster = _cluster()
    reference = ObjectRef(current().process)
    reference.resolve(cluster.world, _Parcel(value))
    return reference


def get(reference: ObjectRef, *, timeout: float | None = None) -> Any:
    world = current().process.world
    if not world.until(lambda: reference.done, reference.waiters, timeout=timeout):
        raise GetTimeoutError("no answer in time")
    return reference.value()


def wait(
    references: Sequence[ObjectRef], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    world = current().process.world

    def ready() -> list[ObjectRef]:
        return [each for each in references if each.done][:num_returns]

    waiters = [each.waiters for each in references]
    world.until(lambda: len(ready()) >= num_returns, *waiters, timeout=timeout)
    found = ready()
    return found, [each for each in references if each not in found]


def kill(actor: ActorHandle) -> None:
    _cluster().kill(actor._actor)


def _get_actor(name: str, namespace: str) -> ActorHandle:
    for actor in _cluster().actors:
        if (actor.name, actor.namespace) == (name, namespace) and actor.process.alive:
            return ActorHandle(actor)
    raise ValueError(f"Failed to look up actor with name '{name}'")


def _named_actors(all_namespaces: bool) -> list[dict[str, str]]:
    found = [actor for actor in _cluster().actors if actor.process.alive]
    return [{"name": actor.name, "namespace": actor.namespace} for actor in found]


def _init(address: str | None, **options: Any) -> None:
    _cluster()
    current().process.connected = True


def _shutdown() -> None:
    process, cluster = current().process, _cluster()
    process.connected = False
    if process in cluster.owners:
        cluster.owners[process].release(process)


class _Metric:
    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def set_default_tags(self, tags: Any) -> None:
        pass

    inc = set = observe = lambda self, value, tags=None: None


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


def _modules() -> dict[str, ModuleType]:
    """What `import ray` finds."""
    errors = [value for value in list(globals().values()) if inspect.isclass(value)]
    errors = [each for each in errors if issubclass(each, RayError)]
    exceptions = _module("ray.exceptions", **{each.__name__: each for each in errors})
    metrics = _module("ray.util.metrics", Counter=_Metric, Gauge=_Metric, Histogram=_Metric)
    util = _module("ray.util", list_named_actors=_named_actors, metrics=metrics)
    ray = _module(
        "ray",
        remote=remote,
        method=method,
        put=put,
        get=get,
        wait=wait,
        kill=kill,
        get_actor=_get_actor,
        init=_init,
        shutdown=_shutdown,
        is_initialized=lambda: getattr(current().process, "connected", False),
        available_resources=lambda: {"CPU": 64.0},
        ObjectRef=ObjectRef,
        cloudpickle=SimpleNamespace(dumps=pickle.dumps),
        exceptions=exceptions,
        util=util,
    )
    return {each.__name__: each for each in (ray, exceptions, util, metrics)}


MODULES = _modules()

__all__ = ["MODULES", "Cluster", "Killed"]
