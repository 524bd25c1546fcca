"""What the service uses of `ray`, on the simulated cluster that its process belongs to."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import simulated_objects
from simulated_actors import ActorHandle, running_cluster
from simulated_objects import GetTimeoutError, ObjectRef, Parcel, RayError
from simulated_world import current


class _ActorClass:
    def __init__(self, made: type, options: dict[str, Any]) -> None:
        self._made, self._options = made, options

    def options(self, **more: Any) -> _ActorClass:
        return _ActorClass(self._made, {**self._options, **more})

    def remote(self, *arguments: Any) -> ActorHandle:
        return running_cluster().start(self._made, self._options, arguments)


def remote(**options: Any) -> Callable[[type], _ActorClass]:
    return lambda made: _ActorClass(made, options)


def put(value: Any) -> ObjectRef:
    cluster = running_cluster()
    reference = ObjectRef(current().process)
    reference.resolve(cluster.world, Parcel(value))
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


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    running_cluster().kill(actor._actor, no_restart)


def _get_actor(name: str, namespace: str) -> ActorHandle:
    for actor in running_cluster().actors:
        if (actor.name, actor.namespace) == (name, namespace) and not actor.ended:
            return ActorHandle(actor)
    raise ValueError(f"Failed to look up actor with name '{name}'")


def _named_actors(all_namespaces: bool) -> list[dict[str, str]]:
    found = [actor for actor in running_cluster().actors if not actor.ended]
    return [{"name": actor.name, "namespace": actor.namespace} for actor in found]


def _runtime_context() -> SimpleNamespace:
    actor = running_cluster().of(current().process)
    return SimpleNamespace(was_current_actor_reconstructed=actor is not None and actor.lives > 1)


def _init(address: str | None, **options: Any) -> None:
    running_cluster()
    current().process.connected = True


def _shutdown() -> None:
    process, cluster = current().process, running_cluster()
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
    errors = [value for value in vars(simulated_objects).values() if inspect.isclass(value)]
    errors = [each for each in errors if issubclass(each, RayError)]
    exceptions = _module("ray.exceptions", **{each.__name__: each for each in errors})
    metrics = _module("ray.util.metrics", Counter=_Metric, Gauge=_Metric, Histogram=_Metric)
    util = _module(
        "ray.util",
        list_named_actors=_named_actors,
        get_node_ip_address=lambda: "10.0.0.1",
        metrics=metrics,
    )
    ray = _module(
        "ray",
        remote=remote,
        put=put,
        get=get,
        wait=wait,
        kill=kill,
        get_actor=_get_actor,
        get_runtime_context=_runtime_context,
        init=_init,
        shutdown=_shutdown,
        is_initialized=lambda: getattr(current().process, "connected", False),
        available_resources=lambda: {"CPU": 64.0},
        cloudpickle=SimpleNamespace(dumps=pickle.dumps),
        exceptions=exceptions,
        util=util,
    )
    return {each.__name__: each for each in (ray, exceptions, util, metrics)}


MODULES = _modules()
