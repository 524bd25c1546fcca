"""A digest of what a function does, as far as its code says: equal in every process.

It covers a function's bytecode and constants, its defaults, what it closes over, the arguments of a
`functools.partial` and the attributes of an object that is called; and likewise each function and
class of the same package that these use, and the constants of their modules: numbers, text and
tuples of them. Comments, docstrings and line numbers do not count.

It does not look into functions of other packages, which count by name, into objects of other
packages, which count by their repr, or into mutable values of modules. A function or object with a
`fingerprint`, an attribute or a method that returns text, is identified by that alone.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from evenstep.plan.value_checks import stable_repr

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_COMPUTED = re.compile(r"(.*):(\d+\.\d+):[0-9a-f]{16}", re.DOTALL)


def code_digest(function: Any) -> str:
    """The function's own `fingerprint`; otherwise its name, the version of Python, whose bytecode
    is digested, and 16 hexadecimal digits."""
    own = _own_fingerprint(function)
    if own is not None:
        return own
    named = function
    while isinstance(named, functools.partial):
        named = named.func
    named = getattr(named, "__func__", named)  # of a method
    name = _name(named if hasattr(named, "__qualname__") else type(named))
    major, minor = sys.version_info[:2]
    return f"{name}:{major}.{minor}:{_Digests(_package(function)).of(function)}"


def same_code(saved: str, now: str) -> bool:
    """Whether two digests may be of the same code. Of different versions of Python only the names
    are compared."""
    one, other = _COMPUTED.fullmatch(saved), _COMPUTED.fullmatch(now)
    if one and other and one[2] != other[2]:
        return one[1] == other[1]
    return saved == now


class _Digests:
    """Digests of values, each computed once."""

    def __init__(self, package: str) -> None:
        """
        Args:
            package: functions and classes of this one are looked into.
        """
        self._package = package
        self._found: dict[int, tuple[Any, str]] = {}
        """By id: the value, which keeps its id while it is here, and its digest."""

    def of(self, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if id(value) not in self._found:
            self._found[id(value)] = value, "itself"  # until it is known: it may contain itself
            content = repr((type(value).__qualname__, self._content(value)))
            digest = hashlib.sha256(content.encode()).hexdigest()[:16]
            self._found[id(value)] = value, digest
        return self._found[id(value)][1]

    def _content(self, value: Any) -> Any:
        own = _own_fingerprint(value)
        if own is not None:
            return own
        if isinstance(value, (tuple, list)):
            return [self.of(each) for each in value]
        if isinstance(value, (set, frozenset)):
            return sorted(self.of(each) for each in value)
        if isinstance(value, Mapping):
            return sorted((self.of(key), self.of(held)) for key, held in value.items())
        if isinstance(value, np.ndarray) and value.dtype != object:
            return value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
        if isinstance(value, functools.partial):
            return [self.of(each) for each in (value.func, value.args, value.keywords)]
        if isinstance(value, MethodType):
            return self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, ModuleType):
            return value.__name__
        inside = _package(value) == self._package
        if isinstance(value, FunctionType):
            return _name(value), self._function(value) if inside else None
        if isinstance(value, type):
            return _name(value), self._class(value) if inside else None
        if hasattr(value, "__wrapped__"):  # by functools.lru_cache and the like
            return self.of(value.__wrapped__)
        if inside:
            return self.of(type(value)), self.of(getattr(value, "__dict__", None))
        return stable_repr(value)

    def _function(self, function: FunctionType) -> Any:
        cells = [_contents_of(cell) for cell in function.__closure__ or ()]
        used = sorted(_globals_of(function.__code__) & function.__globals__.keys())
        held = {name: function.__globals__[name] for name in used}
        return [
            self._code(function.__code__, function.__doc__),
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            [self.of(cell) for cell in cells],
            {name: self.of(value) for name, value in held.items() if _constant(value)},
        ]

    def _code(self, code: CodeType, docstring: str | None = None) -> Any:
        constants = list(code.co_consts)
        if docstring is not None and constants[:1] == [docstring]:
            constants[0] = None
        arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        return code.co_code.hex(), code.co_names, arguments, [self.of(each) for each in constants]

    def _class(self, given: type) -> Any:
        members = {}
        for name, held in sorted(vars(given).items()):
            functions = [getattr(held, each, None) for each in ("__func__", "fget", "func")]
            function = next((f for f in [held, *functions] if isinstance(f, FunctionType)), None)
            if function is not None:
                members[name] = self.of(function)
            elif not name.startswith("__") and _constant(held):
                members[name] = self.of(held)
        bases = [self.of(base) for base in given.__bases__ if base is not object]
        return bases, members


def _contents_of(cell: Any) -> Any:
    """What a function closes over in a cell; None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _own_fingerprint(value: Any) -> str | None:
    if isinstance(value, (type, ModuleType)):
        return None
    own = getattr(value, "fingerprint", None)
    own = own() if callable(own) else own
    return own if isinstance(own, str) else None


def _package(value: Any) -> str:
    """The first name of the module that defines a value, or its type."""
    if isinstance(value, functools.partial):
        return _package(value.func)
    if isinstance(value, MethodType):
        return _package(value.__self__)
    defined = value if isinstance(value, (FunctionType, type)) else type(value)
    package = (defined.__module__ or "").partition(".")[0]
    return "__main__" if package == "__mp_main__" else package  # of a process that was spawned


def _name(value: Any) -> str:
    return f"{(value.__module__ or '').replace('__mp_main__', '__main__')}.{value.__qualname__}"


def _globals_of(code: CodeType) -> set[str]:
    """Names of its module that the code uses, also in the functions within it."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    found = {str(each.argval) for each in dis.get_instructions(code) if each.opname in loads}
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found.union(*map(_globals_of, inner))


def _constant(value: Any) -> bool:
    """Whether a value that a module or class holds is there for good: code, or a constant."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_constant, value))
    return isinstance(value, (*_PLAIN, FunctionType, type, functools.partial))
