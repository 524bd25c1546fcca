"""Checks and pickles objects that are sent to other processes, such as the functions of a job.

Functions and classes without an importable name (lambdas, functions within functions, those of a
notebook) are sent by value, by cloudpickle; so the objects that they close over must be picklable.
Both are checked where a job is built.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from evenstep.errors import ConfigurationError, described


def check_picklable(what: str, value: Any) -> None:
    """
    Args:
        what: the name of the value in an error.

    Raises:
        ConfigurationError: it holds something that belongs to this process.
    """
    try:
        pickle.dumps(value)
    except Exception as error:
        if _cloudpickle() is not None and _pickled_by_value(value) is None:
            raise ConfigurationError(
                f"{what} cannot be sent to other processes ({described(error)}); keep "
                "open files, locks, connections and generators out of it, and open them where they "
                "are used"
            ) from error


def pickled(what: str, value: Any) -> bytes:
    """Bytes that a spawned process reads by `pickle.loads`.

    Args:
        what: the name of the value in an error.

    Raises:
        ConfigurationError: it cannot be pickled, or only by value and cloudpickle is not installed.
    """
    try:
        by_name = pickle.dumps(value)
    except Exception as error:
        by_value = _pickled_by_value(value)
        if by_value is None:
            raise ConfigurationError(
                f"{what} cannot be sent to worker processes ({described(error)}); "
                "define what it holds at the top level of a module, install cloudpickle, which "
                "also comes with Ray, or choose workers=0"
            ) from error
        return by_value
    # A spawned process runs the script again and so finds its names; a notebook is not a script.
    if hasattr(sys.modules["__main__"], "__file__") or b"__main__" not in by_name:
        return by_name
    return _pickled_by_value(value) or by_name


def pickled_by_value(what: str, value: Any) -> bytes:
    """As `pickled`, for a process that does not run this one's script.

    Raises:
        ConfigurationError: it cannot be pickled, or only by value and cloudpickle is not installed.
    """
    by_value = _pickled_by_value(value)
    if by_value is not None:
        return by_value
    try:
        by_name = pickle.dumps(value)
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be sent to other processes ({described(error)}); define what it holds "
            "at the top level of a module, or install cloudpickle, which also comes with Ray"
        ) from error
    if b"__main__" in by_name:
        raise ConfigurationError(
            f"{what} is defined in this script, where other processes do not find it; put it into "
            "a module, or install cloudpickle, which also comes with Ray"
        )
    return by_name


def _pickled_by_value(value: Any) -> bytes | None:
    """Pickled by cloudpickle; None if that fails too."""
    try:
        sent: bytes = _cloudpickle().dumps(value)
        return sent
    except Exception:  # not installed, or whatever pickling it raises
        return None


def _cloudpickle() -> Any:
    """The module, or the copy that Ray has; None if neither is installed."""
    for name in ("cloudpickle", "ray.cloudpickle"):
        with suppress(ImportError):
            return import_module(name)
    return None
