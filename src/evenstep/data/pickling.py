"""Functions of a job: sent to other processes by cloudpickle, and told apart by `code_digest`.

Functions and classes without an importable name (lambdas, functions within functions, those of a
script or notebook) are sent by value, so the objects that they close over must be picklable. Both
are checked where a job is built.

A digest says what a function does, as far as its own code says: equal in every process. It covers a
function's bytecode and constants, its defaults, what it closes over, the arguments of a
`functools.partial` and the attributes of an object that is called. Comments, docstrings and line
numbers do not count, nor do other functions that it calls, or values of its module. A function or
object with a `fingerprint`, an attribute or a method that returns text, is identified by that
alone.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
from types import CodeType, FunctionType, MethodType
from typing import Any

from evenstep.errors import ConfigurationError, described, installing
from evenstep.plan.value_checks import stable_repr

try:
    import cloudpickle  # type: ignore[import-untyped]
except ImportError:  # then nothing is sent: all runs in one process
    cloudpickle = None
else:

    class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, io.IOBase):  # or all that the file holds would be sent
                raise TypeError(f"cannot pickle {obj!r}")
            return super().reducer_override(obj)


def check_picklable(what: str, value: Any) -> None:
    """As `pickled`, as far as that is possible here."""
    if cloudpickle is not None:
        pickled(what, value)


def pickled(what: str, value: Any) -> bytes:
    """Bytes that any process reads by `pickle.loads`.

    Args:
        what: the name of the value in an error.

    Raises:
        ConfigurationError: it holds something that belongs to this process, or cloudpickle is not
            installed.
    """
    if cloudpickle is None:
        raise ConfigurationError(
            f"{what} is sent to other processes by cloudpickle: {installing('processes')}, or "
            "choose workers=0"
        )
    sent = io.BytesIO()
    try:
        _Pickler(sent).dump(value)
        return sent.getvalue()
    except Exception as error:  # whatever pickling it raises
        raise ConfigurationError(
            f"{what} cannot be sent to other processes ({described(error)}); keep "
            "open files, locks, connections and generators out of it, and open them where they are "
            "used"
        ) from error


def code_digest(function: Any) -> str:
    """The function's own `fingerprint`; otherwise its name, the version of Python, whose bytecode
    is digested, and 16 hexadecimal digits."""
    own = getattr(function, "fingerprint", None)
    own = own() if callable(own) else own
    if isinstance(own, str):
        return own
    held: list[Any] = []
    while isinstance(function, functools.partial):
        held += [function.args, function.keywords]
        function = function.func
    if isinstance(function, MethodType):
        held.append(getattr(function.__self__, "__dict__", None))
        function = function.__func__
    elif not isinstance(function, (FunctionType, type)) and hasattr(function, "__dict__"):
        held.append(vars(function))
        function = type(function)
    code = getattr(function, "__call__" if isinstance(function, type) else "__code__", None)
    if isinstance(code, FunctionType):  # of the class of an object that is called
        code = code.__code__
    if isinstance(code, CodeType):
        held.append(_contents(code))
    if isinstance(function, FunctionType):
        cells = [contents_of(cell) for cell in function.__closure__ or ()]
        held += [function.__defaults__, function.__kwdefaults__, cells]
    found = hashlib.sha256(stable_repr(held).encode()).hexdigest()[:16]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None) or ""
    major, minor = sys.version_info[:2]
    return f"{module.replace('__mp_main__', '__main__')}.{name}:{major}.{minor}:{found}"


def same_code(saved: str, now: str) -> bool:
    """Whether two digests may be of the same code. Of different versions of Python only the names
    are compared."""
    one, other = saved.rsplit(":", 2), now.rsplit(":", 2)
    if len(one) == len(other) == 3 and one[1] != other[1]:
        return one[0] == other[0]
    return saved == now


def _contents(code: CodeType) -> Any:
    """What code does, without its docstring."""
    constants = [
        _contents(each) if isinstance(each, CodeType) else each
        for number, each in enumerate(code.co_consts)
        if number or not isinstance(each, str)
    ]
    return code.co_code.hex(), code.co_names, code.co_varnames, constants


def contents_of(cell: Any) -> Any:
    """What a function closes over in a cell; None if it is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
