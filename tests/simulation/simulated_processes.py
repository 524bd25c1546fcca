"""What the loader uses of `multiprocessing`, `os` and `signal`, simulated."""

from __future__ import annotations

import copyreg
import functools
import io
import os as real_os
import pickle
import signal as real_signal
import traceback
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import simulated_pipes
from processes import Process as OsProcess
from simulated_pipes import Connection
from simulated_world import Fiber, Killed, World, current


class Sentinel:
    """Readable once the process has ended."""

    def __init__(self, process: OsProcess) -> None:
        self._process = process

    def readable(self) -> bool:
        return not self._process.alive

    def readers(self) -> list[Any]:
        return self._process.exited


class Process:
    """As `multiprocessing.Process`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
        method: str = "fork",
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon, self._method = name or "process", bool(daemon), method
        self.os: OsProcess | None = None

    def start(self) -> None:
        parent = current().process
        world = parent.world
        world.pause()
        if (error := parent.fails.pop("fork", None)) is not None:
            raise error
        self.os = start_process(
            world,
            f"{parent.name}.{self.name.removeprefix('evenstep-')}",
            lambda: self._target(*self._args, **self._kwargs),
            parent,
        )
        self.os.handle = self
        if self._method == "fork":
            for end in [end for end in parent.ends if end.inherited]:
                end.hold(self.os)
        else:
            self._args, self._kwargs = _copied((self._args, self._kwargs), self.os)

    @property
    def pid(self) -> int | None:
        return self.os.pid if self.os else None

    @property
    def sentinel(self) -> Sentinel:
        assert self.os is not None
        return Sentinel(self.os)

    @property
    def exitcode(self) -> int | None:
        current().process.world.pause()
        return self.os.exit_code if self.os else None

    def is_alive(self) -> bool:
        current().process.world.pause()
        return self.os is not None and self.os.alive

    def join(self, timeout: float | None = None) -> None:
        assert self.os is not None
        process = self.os
        process.world.until(lambda: not process.alive, process.exited, timeout=timeout)

    def kill(self) -> None:
        current().process.world.pause()
        if self.os is not None:
            self.os.world.exit(self.os, -9)

    close = staticmethod(lambda: None)


def start_process(
    world: World, name: str, work: Callable[[], Any], parent: OsProcess | None
) -> OsProcess:
    process = OsProcess(world, name, parent)
    world.begun(process)
    world.spawn(Fiber(process, "MainThread", lambda: _live(process, work)))
    return process


def _live(process: OsProcess, work: Callable[[], Any]) -> None:
    """The main thread, and what Python does at the end of a process."""
    code = 0
    try:
        work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Killed:
        raise
    except BaseException:
        process.error = traceback.format_exc()
        code = 1
    world = process.world
    for fiber in process.fibers[1:]:
        if not fiber.daemon:
            world.until(lambda fiber=fiber: not fiber.alive, fiber.joined)
    for _, finalizer in sorted(process.finalizers, key=lambda pair: -pair[0]):
        finalizer()
    for child in process.children:
        if child.alive and not child.handle.daemon:
            child.handle.join()
        elif child.alive:
            world.exit(child, -15)
    world.exit(process, code)
    world.pause()


def _copied(value: Any, receiver: OsProcess) -> Any:
    """As it arrives in a process that was not forked. Pipes are passed on."""
    passed: list[Connection] = []

    class Pickler(pickle.Pickler):
        dispatch_table = copyreg.dispatch_table

        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Connection):
                passed.append(obj)
                return len(passed) - 1
            return None

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: int) -> Any:
            passed[number].hold(receiver)
            return passed[number]

    file = io.BytesIO()
    Pickler(file).dump(value)
    return Unpickler(io.BytesIO(file.getvalue())).load()


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    process = current().process
    return simulated_pipes.pipe(
        # That an error's text fills an empty pipe is not worth knowing.
        duplex,
        first=process,
        second=process,
        capacity=process.world.capacity if duplex else max(process.world.capacity, 1 << 14),
    )


class Context:
    """As `multiprocessing.get_context` returns."""

    Pipe = staticmethod(Pipe)

    def __init__(self, method: str | None) -> None:
        self._method = method or "fork"

    def Process(self, *args: Any, **options: Any) -> Process:
        return Process(*args, method=self._method, **options)

    def get_start_method(self) -> str:
        return self._method


def _children() -> list[Process]:
    return [child.handle for child in current().process.children if child.alive]


def _parent() -> Any:
    parent = current().process.parent
    return None if parent is None else SimpleNamespace(sentinel=Sentinel(parent), pid=parent.pid)


class Finalize:
    """As `multiprocessing.util.Finalize`: at the end of the process, or of `obj`."""

    def __init__(
        self,
        obj: Any,
        callback: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        exitpriority: int = 0,
    ) -> None:
        self._call: Callable[[], Any] | None = functools.partial(callback, *args, **kwargs or {})
        self._reference = None if obj is None else weakref.ref(obj, self)
        self._process = current().process
        self._process.finalizers.append((exitpriority, self))

    def __call__(self, _: Any = None) -> None:
        call, self._call = self._call, None
        if call is not None and current().process is self._process:  # a fork has a copy
            call()


multiprocessing = SimpleNamespace(
    Pipe=Pipe,
    get_context=Context,
    get_start_method=lambda allow_none=False: "fork",
    get_all_start_methods=lambda: ["fork", "spawn", "forkserver"],
    active_children=_children,
    parent_process=_parent,
    connection=SimpleNamespace(wait=simulated_pipes.wait, Connection=Connection),
    util=SimpleNamespace(Finalize=Finalize),
)


class _Os:
    """The real module, but for what concerns processes."""

    def __getattr__(self, name: str) -> Any:
        if name in ("fork", "kill", "waitpid"):
            raise AssertionError(f"os.{name} is not simulated")
        return getattr(real_os, name)

    def getpid(self) -> int:
        return current().process.pid

    def getppid(self) -> int:
        parent = current().process.parent
        return parent.pid if parent is not None and parent.alive else 1

    def _exit(self, code: int) -> None:
        process = current().process
        process.world.exit(process, code)
        process.world.pause()


class _Signal:
    def __getattr__(self, name: str) -> Any:
        return getattr(real_signal, name)

    def signal(self, number: int, handler: Any) -> Any:
        process = current().process
        previous = process.handlers.get(number, real_signal.SIG_DFL)
        process.handlers[number] = handler
        return previous

    def getsignal(self, number: int) -> Any:
        return current().process.handlers.get(number, real_signal.SIG_DFL)


os, signal = _Os(), _Signal()


def open_proc(path: str, mode: str) -> io.BytesIO:
    """What the kernel says of a process, in /proc."""
    pid = int(path.split("/")[2])
    for process in current().process.world.processes:
        if process.pid == pid and process.alive:
            return io.BytesIO(b"%d (python) %c" % (pid, b"ST"[process.paused is not None]))
    raise FileNotFoundError(path)


class PerProcess:
    """A global variable, of which every process has its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def _own(self) -> Any:
        return vars(current().process).setdefault("globals", {}).setdefault(self, self._make())

    def __getitem__(self, key: Any) -> Any:
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own()[key] = value
