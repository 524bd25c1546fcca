"""What is sent to other processes, such as the functions of a job.

Functions and classes that have no importable name (lambdas, functions within functions, those of a
notebook) travel by value, as cloudpickle sends them; so what counts is what they close over. That
is found out where a job is built.
"""

from __future__ import annotations

import io
import pickle
import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from evenstep.errors import ConfigurationError

__all__ = ["check_travels", "packed"]

_CLOUDPICKLES = ("cloudpickle", "ray.cloudpickle")


def check_travels(what: str, value: Any) -> None:
    """
    Args:
        what: what to call it in an error.

    Raises:
        ConfigurationError: it holds something that belongs to this process.
    """
    try:
        _Check(io.BytesIO()).dump(value)
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be sent to other processes ({type(error).__name__}: {error}); leave "
            "open files, locks, connections and generators out of it, and make them where they are "
            "used"
        ) from error


def packed(what: str, value: Any) -> bytes:
    """Bytes that a process which this one spawns reads by `pickle.loads`.

    Args:
        what: what to call it in an error.

    Raises:
        ConfigurationError: it cannot be sent, or only by value, and cloudpickle is not installed.
    """
    try:
        by_name = pickle.dumps(value)
    except Exception as error:
        by_value = _by_value(value)
        if by_value is None:
            raise ConfigurationError(
                f"{what} cannot be sent to worker processes ({type(error).__name__}: {error}); "
                "define what it holds at the top level of a module, install cloudpickle, which "
                "also comes with Ray, or choose workers=0"
            ) from error
        return by_value
    # Spawned processes run the script again, and so find its names; but a notebook is no script.
    if hasattr(sys.modules["__main__"], "__file__") or b"__main__" not in by_name:
        return by_name
    return _by_value(value) or by_name


def _by_value(value: Any) -> bytes | None:
    """None where it cannot be sent so either."""
    for name in _CLOUDPICKLES:
        try:
            sent: bytes = import_module(name).dumps(value)
            return sent
        except Exception:  # not installed, or whatever pickling it raises
            continue
    return None


class _Check(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._begun: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return _Held, (value.__name__,)
        if not isinstance(value, (FunctionType, type)) or _importable(value):
            return NotImplemented
        if id(value) in self._begun:  # it holds itself, as a function that calls itself does
            return _Held, ()
        self._begun.add(id(value))
        if isinstance(value, type):
            own = [held for held in vars(value).values() if isinstance(held, FunctionType)]
            return _Held, (value.__name__, value.__bases__, own)
        cells = [_content(cell) for cell in value.__closure__ or ()]
        return _Held, (value.__name__, cells, value.__defaults__, value.__kwdefaults__)


class _Held:
    """Stands for what is sent by value."""

    def __init__(self, *_: Any) -> None: ...


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _importable(value: FunctionType | type) -> bool:
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value
