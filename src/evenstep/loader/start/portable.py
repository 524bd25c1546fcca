"""A loader's spec as bytes for another process, if a copy is cheap and as good as the original.

A process that is not a fork of the trainer has globals, and attributes of classes, as a fresh
import leaves them. A script that sets ``MAX_LENGTH`` from its command line, or patches a function,
would silently get other samples there. So what the code of the dataset reads is described here,
and compared there before the dataset is used. Code of installed packages is not followed: it keeps
caches, and is not set up by assignments.

`LimitedPickler` gives up early: above some size, or where a copy would not be as good.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.shared_memory import ShareableList, SharedMemory
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from evenstep.errors import described
from evenstep.loader.start.script import line_that_works


class NotPortable(Exception):
    """Something cannot be sent to another process, or would not be the same there. Says why."""


class LimitedPickler(pickle.Pickler):
    """Refuses what has many bytes, before it copies them, and memory that processes share."""

    def __init__(self, limit: int, protocol: int) -> None:
        self._limit = limit
        self._file = _Limited(limit)
        self.named: list[Any] = []
        """Classes and functions of the pickle, which it holds by name."""
        super().__init__(self._file, protocol)

    def bytes_of(self, obj: Any) -> bytes:
        """
        Raises:
            NotPortable: it is too large, or is memory that processes share.
            Exception: it cannot be pickled: a class may raise anything.
        """
        self.dump(obj)
        return self._file.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            self.named.append(obj)
        elif isinstance(obj, torch.Tensor):
            _refuse_over(self._limit, obj.untyped_storage().nbytes())
            if obj.is_shared():  # type: ignore[no-untyped-call]
                raise NotPortable("it holds a tensor in shared memory")
        elif isinstance(obj, np.ndarray):
            _refuse_over(self._limit, obj.nbytes)
            if obj.flags.writeable and not _owns_memory(obj):
                raise NotPortable("it holds an array over memory that others may write to")
        elif isinstance(obj, (SharedMemory, ShareableList)):
            raise NotPortable("it holds shared memory")
        return NotImplemented


class _Limited(io.BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        _refuse_over(self._limit, self.tell() + memoryview(data).nbytes)
        return super().write(data)


def _refuse_over(limit: int, size: int) -> None:
    if size > limit:
        raise NotPortable(f"it has more than {limit / (1 << 20):g} MiB")


def _owns_memory(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return False
        array = array.base
    return array is None or isinstance(array, (bytes, bytearray))


_LIMIT = 1 << 16  # bytes of a value to compare; of larger ones the type must do
_INSTALLED = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_EVENSTEP = str(Path(__file__).parents[2])

Descriptions = Mapping[tuple[str, str], bytes]
"""By module and name in it: what is found there."""

_MAIN = {"__main__", "__mp_main__"}
"""Names of the module that a script is: where it runs, and where multiprocessing imports it."""

LIMIT = 16 << 20  # bytes; more take longer to send than to fork


@dataclass(frozen=True)
class Imports:
    """What a process has to import before it can unpickle something."""

    preparation: dict[str, Any]
    """For ``multiprocessing.spawn.prepare``: where modules are found, and the main one."""
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Portable:
    """An object, and what must be the same where it is unpickled."""

    pickle: bytes
    imports: Imports
    globals: Descriptions
    environ: dict[str, str]
    authkey: bytes
    default_dtype: torch.dtype


def make_portable(obj: Any) -> Portable:
    """
    Raises:
        NotPortable: it cannot be pickled, is large, is in shared memory, or is defined in a script
            that must not be imported; or there is no working directory, say.
    """
    try:
        return _make_portable(obj)
    except NotPortable:
        raise
    except Exception as error:  # of the user's objects: looking at one may raise anything
        raise NotPortable(described(error)) from error


def _make_portable(obj: Any) -> Portable:
    pickler = LimitedPickler(LIMIT, protocol=5)
    pickled = pickler.bytes_of(obj)
    modules = {thing.__module__ for thing in pickler.named}
    preparation = {"sys_path": list(sys.path), "sys_argv": list(sys.argv), "dir": os.getcwd()}
    if modules & _MAIN:
        preparation.update(_import_of_main())
    return Portable(
        pickle=pickled,
        imports=Imports(preparation, tuple(sorted(modules - _MAIN))),
        globals=describe_globals(pickler.named),
        environ=dict(os.environ),
        authkey=bytes(process.current_process().authkey),
        default_dtype=torch.get_default_dtype(),
    )


def _import_of_main() -> dict[str, str]:
    """How another process imports the script that this one runs."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    name = main.__spec__.name if main.__spec__ is not None else ""
    if path is None or not os.path.exists(path) or name.endswith("__main__"):
        raise NotPortable("it is defined interactively, in no module that can be imported")
    if (line := line_that_works(path)) is not None:
        raise NotPortable(
            f"it is defined in {path}, which does more than define things where it is imported, as "
            f'in line {line}; move that under `if __name__ == "__main__":`, or it to a module'
        )
    return {"init_main_from_name": name} if name else {"init_main_from_path": os.path.abspath(path)}


def describe_globals(roots: Iterable[Any]) -> Descriptions:
    """What functions and classes read, and what the functions read that they use."""
    found: dict[tuple[str, str], bytes] = {}
    waiting, seen = list(roots), set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for module, name, value in _read_by(thing):
            if (module, name) not in found:
                found[module, name] = _describe(value)
                waiting.append(_function(value))
        if isinstance(thing, type):
            waiting.extend(thing.__bases__)
    return found


def difference(expected: Descriptions) -> str | None:
    """The first name that stands for something else in this process."""
    for (module, name), description in expected.items():
        try:
            value = functools.reduce(inspect.getattr_static, name.split("."), sys.modules[module])
        except (KeyError, AttributeError):
            return f"{module}.{name}"
        if _describe(value) != description:
            return f"{module}.{name}"
    return None


def _read_by(thing: Any) -> Iterator[tuple[str, str, Any]]:
    if isinstance(thing, type):
        if _followed(thing.__module__):
            for name, value in vars(thing).items():
                if hasattr(_function(value), "__code__") or not name.startswith("__"):
                    yield thing.__module__, f"{thing.__qualname__}.{name}", value
        return
    code, scope = getattr(thing, "__code__", None), getattr(thing, "__globals__", None)
    if not isinstance(code, CodeType) or scope is None or not _followed(scope["__name__"]):
        return
    names = set(_names(code))
    for name in names & scope.keys():
        value = scope[name]
        yield scope["__name__"], name, value
        if isinstance(value, ModuleType) and _followed(value.__name__):
            for attribute in names & vars(value).keys():
                yield value.__name__, attribute, vars(value)[attribute]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _function(value: Any) -> Any:
    """What a method, property or decorator runs."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    return inspect.unwrap(value) if callable(value) else value


def _describe(value: Any) -> bytes:
    if isinstance(value, ModuleType):
        return value.__name__.encode()
    inner = _function(value)
    if hasattr(inner, "__qualname__"):
        home = getattr(inner, "__module__", "")  # what stands for a slot has none
        return f"{home}.{inner.__qualname__}".replace("__mp_main__", "__main__").encode()
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)  # their order differs from process to process
    try:
        # An old protocol, in which names have no lengths before them.
        pickled = LimitedPickler(_LIMIT, protocol=2).bytes_of(value)
        return pickled.replace(b"__mp_main__", b"__main__")
    except Exception:  # a class may raise anything
        return type(value).__qualname__.encode()


@functools.cache
def _followed(module: str) -> bool:
    path = getattr(sys.modules.get(module), "__file__", None)
    return path is not None and not path.startswith((*_INSTALLED, _EVENSTEP))
