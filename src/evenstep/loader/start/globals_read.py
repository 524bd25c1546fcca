"""What the code of a dataset reads beside its arguments: globals and attributes of classes.

A process that did not come from a fork of the trainer has them as a fresh import leaves them. A
script that sets ``MAX_LENGTH`` from its command line, or patches a function, would get other
samples there, without an error. So they are compared, by descriptions, before a dataset is used.

Code of installed packages is not followed: it keeps caches, and is not set up by assignments.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from evenstep.loader.start.limited_pickle import LimitedPickler, NotPortable

_LIMIT = 1 << 16  # bytes of a value to compare; of larger ones the type must do
_INSTALLED = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_EVENSTEP = str(Path(__file__).parents[2])

Descriptions = Mapping[tuple[str, str], bytes]
"""By module and name in it: what is found there."""


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
    except NotPortable:
        return type(value).__qualname__.encode()


@functools.cache
def _followed(module: str) -> bool:
    path = getattr(sys.modules.get(module), "__file__", None)
    return path is not None and not path.startswith((*_INSTALLED, _EVENSTEP))
