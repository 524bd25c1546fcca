"""Puts the simulated machine in the place of the real one, in every module of the loader or of the
service."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import importlib
import logging
import multiprocessing.util
import os
import pkgutil
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import simulated_distributed
import simulated_processes
import simulated_ray
import simulated_sockets
import simulated_threading as simulated
import simulated_torch_loader
import torch.distributed
import torch.utils.data
from simulated_world import Killed

import evenstep.loader
import evenstep.processes
import evenstep.service
from evenstep.loader.transport import patience, peers, rank_exchange
from evenstep.service import messages
from evenstep.service.backends.ray import launcher, ray_service
from evenstep.service.constructor import step_fetcher
from evenstep.service.registry import role_watch
from evenstep.service.remote import channels, handles, role_host, role_makers
from evenstep.service.source_loader import source_loader
from evenstep.service.transport.endpoint import Keys

logger = logging.getLogger("evenstep")

_UNCHANGED = ("evenstep.loader.torch_loader",)


def _now() -> float:
    return 1e6 + simulated.world().now


def _sleep(seconds: float) -> None:
    simulated.world().sleep(seconds)


class _Module(SimpleNamespace):
    """Of a module, what is simulated. To use more of it is no error of the loader's."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            simulated.world().violate(f"{name} is not simulated")
        raise AttributeError(name)


_THREADING = _Module(
    Thread=simulated.Thread,
    Timer=simulated.Timer,
    Lock=simulated.Lock,
    Condition=simulated.Condition,
    Event=simulated.Event,
    current_thread=simulated.current_thread,
    enumerate=simulated.enumerate_threads,
    active_count=lambda: len(simulated.enumerate_threads()),
)
_INSTEAD: list[tuple[Any, Any]] = [
    (threading, _THREADING),
    (queue, _Module(SimpleQueue=simulated.SimpleQueue, Empty=queue.Empty)),
    (
        time,
        _Module(
            monotonic=_now,
            time=_now,
            perf_counter=_now,
            thread_time=lambda: 0.0,  # all time is waited for something
            process_time=lambda: 0.0,
            time_ns=lambda: int(1e9 * _now()),
            localtime=time.localtime,
            strftime=time.strftime,
            sleep=_sleep,
        ),
    ),
    (multiprocessing, simulated_processes.multiprocessing),
    (multiprocessing.util.Finalize, simulated_processes.Finalize),
    (os, simulated_processes.os),
    (signal, simulated_processes.signal),
    (gc, _Module(freeze=lambda: None)),  # all processes share the real one
    (
        traceback,
        _Module(
            format_exc=traceback.format_exc,
            print_exc=lambda: None,
            extract_tb=traceback.extract_tb,
        ),
    ),
    (torch.distributed, simulated_distributed.distributed),
    (torch.utils.data.DataLoader, simulated_torch_loader.DataLoader),
    (torch.utils.data.get_worker_info, simulated_torch_loader.worker_info),
    (concurrent.futures.Future, simulated.Future),
]
_BY_ID = {id(real): instead for real, instead in _INSTEAD}


def _modules(package: Any) -> list[Any]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(package.__name__) and name not in _UNCHANGED
    ]


@contextmanager
def simulated_machine() -> Iterator[None]:
    """Within it, the loader runs on the simulated machine, and nowhere else."""
    modules = _modules(evenstep.loader)
    with _simulated([*modules, evenstep.processes]):
        patience._made = simulated_processes.PerProcess(collections.Counter)  # type: ignore
        peers.socket = _Module(gethostname=lambda: simulated.current().process.host)  # type: ignore
        rank_exchange.Meeting = simulated_distributed.Meeting  # type: ignore
        peers.open = simulated_processes.open_proc  # type: ignore[attr-defined]
        yield


@contextmanager
def simulated_cluster() -> Iterator[None]:
    """Within it, the service runs on a simulated cluster, and nowhere else."""
    before = {name: sys.modules.get(name) for name in simulated_ray.MODULES}
    own_folder, tempfile.tempdir = tempfile.tempdir, tempfile.mkdtemp()  # no real job is in it
    with _simulated(_modules(evenstep.service)):
        timer = vars(messages.WaitTimer)
        own = {name: value for name, value in timer.items() if name not in vars(object)}
        per_thread = type("WaitTimer", (simulated.Local,), {**own, "__init__": timer["__init__"]})
        for module in (handles, role_host, role_makers, messages):
            module.WaitTimer = per_thread  # type: ignore
        role_host.Server = simulated_sockets.Server  # type: ignore
        channels._connections = lambda endpoint, process: simulated_sockets.Connections(endpoint)  # type: ignore
        launcher.Keys = _Module(new=lambda: Keys(*[b""] * 4))  # type: ignore
        role_watch.remove_socket = lambda endpoint: None
        ray_service.write_endpoint = ray_service.remove_endpoint = lambda path, endpoint: None
        _with_default(source_loader, "StagedStep", "lock", simulated.Lock)
        _with_default(step_fetcher, "_Step", "lock", simulated.Lock)
        sys.modules.update(simulated_ray.MODULES)
        try:
            with warnings.catch_warnings():
                # Of a process that ends, no coroutine is awaited.
                warnings.filterwarnings("ignore", "coroutine .* was never awaited")
                yield
        finally:
            shutil.rmtree(str(tempfile.tempdir))
            tempfile.tempdir = own_folder
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module


def _with_default(module: Any, name: str, field: str, make: Any) -> None:
    """Replaces the default factory of a field, of which the dataclass has the real one."""
    real = getattr(module, name)
    made = lambda self, *args: real.__init__(self, *args, **{field: make()})  # noqa: E731
    setattr(module, name, type(name, (real,), {"__init__": made}))


@contextmanager
def _simulated(modules: list[Any]) -> Iterator[None]:
    # Whole modules: histories also change global variables, which real processes would each have.
    before = [(module, dict(vars(module))) for module in modules]
    hook, sys.unraisablehook = sys.unraisablehook, _quiet
    for module, names in before:
        for name, value in names.items():
            instead = _BY_ID.get(id(value))
            if isinstance(value, threading.local):
                instead = simulated.Local()
            if instead is not None:
                setattr(module, name, instead)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    gc.collect()
    gc.freeze()  # so that a collection between two histories looks at the last one only
    gc.disable()  # within a history the collector would run at any time
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        logger.setLevel(level)
        for module, names in before:
            vars(module).update(names)
            for name in vars(module).keys() - names.keys():
                delattr(module, name)
        gc.collect()
        sys.unraisablehook = hook


def _quiet(unraisable: Any) -> None:
    """A finalizer that runs when its process is no more."""
    if not issubclass(unraisable.exc_type, Killed):
        sys.__unraisablehook__(unraisable)
