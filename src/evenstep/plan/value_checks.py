"""Checks of options and of lengths, where an object is built from them; options as plain values.

Plain values and their text are equal on every rank and in every run, so that they compare.

Values that were saved and are read back are checked as well: a damaged document is refused by name.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, WrongTypeError

AUTO = "auto"
"""Of options that may be a number, or found out."""
LARGEST = 2**48
"""No option is larger but a seed: sums and products of a few of them then fit in an int64."""
_LARGEST_SEED = 2**64 - 1


class NamesArguments:
    """A class whose constructor refuses a name that it does not know, and says which is meant."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        known = list(inspect.signature(cls.__init__).parameters)[1:] if named else []
        for name in named:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.75)
                remedy = f"{near[0]}= is meant" if near else f"there are {', '.join(known)}"
                raise WrongTypeError(f"{cls.__name__} has no argument {name}=; {remedy}")
        return super().__new__(cls)


def check_type(kind: type, **values: object) -> None:
    """Raises `WrongTypeError` for the first value that is none of a class of options."""
    home = ".".join(kind.__module__.split(".")[:2])
    for name, value in values.items():
        if not isinstance(value, kind):
            raise WrongTypeError(
                f"{name}={shorten(value)} must be an {home}.{kind.__name__}, such as "
                f"{name}={home}.{kind.__name__}()"
            )


def check_given(**values: object) -> None:
    """Raises `ConfigurationError` for the first value that is None."""
    for name, value in values.items():
        if value is None:
            raise ConfigurationError(f"{name}=None must be an integer; it has no default")


def check_at_least(minimum: int, **values: int | None) -> None:
    """Raises `ConfigurationError` for the first value that is not an integer, is below `minimum` or
    above `LARGEST`. None, which stands for no limit, passes.
    """
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise WrongTypeError(f"{name}={value!r} must be an integer")
        if value < minimum:
            raise ConfigurationError(f"{name}={value} must be at least {minimum}")
        most = _LARGEST_SEED if name == "seed" else LARGEST
        if value > most:
            raise ConfigurationError(f"{name}={value} must be at most {most:,}")


def check_one_of(choices: Iterable[str], **values: object) -> None:
    """Raises `ConfigurationError` for the first value that is none of the choices."""
    known = list(choices)
    for name, value in values.items():
        if value not in known:
            raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(known)}")


def check_seconds(zero: str, **seconds: float | None) -> None:
    """Raises `ConfigurationError` for the first value that is negative or NaN. None passes.

    Args:
        zero: what 0 does.
    """
    for name, value in seconds.items():
        if value is not None and not value >= 0:
            raise ConfigurationError(f"{name}={value} must not be negative; 0 {zero}")


MAX_LENGTH = 2**31 - 1
"""Planners keep a length and a position in one int64."""


def check_lengths(given: npt.ArrayLike, name: str = "lengths=") -> Int64Array:
    """[samples] a copy of lengths in tokens.

    Args:
        name: that an error gives them.

    Raises:
        ConfigurationError: not one dimension of integers, none at all, or one out of range.
    """
    values = np.asarray(given)
    if values.ndim != 1:
        raise ConfigurationError(f"{name} has shape {values.shape}; it must have one dimension")
    if not len(values):
        raise ConfigurationError(f"{name} holds no lengths")
    if values.dtype.kind not in "iu":
        raise not_integers(name, values.dtype)
    too_long = MAX_LENGTH + 1
    for bad, limit in ((values < 1, "at least 1"), (values >= too_long, f"below {too_long:,}")):
        if bad.any():
            first = int(np.argmax(bad))
            raise ConfigurationError(
                f"{name} has {int(bad.sum()):,} lengths that are not {limit}, the first "
                f"of them {values[first]} at position {first}; remove these samples"
            )
    return values.astype(np.int64)


def not_integers(name: str, kind: object) -> ConfigurationError:
    return ConfigurationError(
        f"{name} holds {kind}; lengths must be integers: the tokens of each sample"
    )


def plain_value(value: object) -> Any:
    """Numbers, text and None as they are, everything else as its `stable_repr`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (int, float, str)):
        return value
    return stable_repr(value)


def stable_repr(value: object) -> str:
    """The repr without the memory address that functions and objects have in theirs by default:
    it differs between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


COUNT = range(2**53)
"""Whole numbers that all readers of JSON keep."""
AT_LEAST_1 = range(1, 2**53)


def check_schema(value: Any, schema: Any, path: str = "") -> None:
    """
    Raises:
        KeyError: a field is missing.
        TypeError: a value has another type, or is out of range.
    """
    if isinstance(schema, dict) and isinstance(value, Mapping):
        if str in schema:
            check_schema(list(value), [str], path)
            schema = dict.fromkeys(value, schema[str])
        for name, inner in schema.items():
            if name not in value:
                raise KeyError(f"{path}.{name}".lstrip("."))
            check_schema(value[name], inner, f"{path}.{name}")
    elif isinstance(schema, list) and isinstance(value, list):
        for number, item in enumerate(value):
            check_schema(item, schema[0], f"{path}.{number}")
    elif isinstance(schema, tuple):
        if value not in schema[1:]:
            check_schema(value, schema[0], path)
    elif not _fits(value, schema):
        raise TypeError(f"{path.lstrip('.')} is {shorten(value)}")


def _fits(value: Any, schema: Any) -> bool:
    if isinstance(schema, range):
        return type(value) is int and value in schema
    if schema is float:
        return type(value) in (int, float) and math.isfinite(value)
    return isinstance(schema, type) and isinstance(value, schema)


def require(holds: bool, path: str, value: object) -> None:
    """
    Raises:
        ValueError: a value fits its schema, and contradicts another one.
    """
    if not holds:
        raise ValueError(f"{path} is {shorten(value)}, which contradicts the rest")


def increasing(numbers: Sequence[int], below: int) -> bool:
    return all(a < b for a, b in pairwise([*numbers, below]))


def distinct(numbers: Sequence[int], below: int) -> bool:
    return len(set(numbers)) == len(numbers) and max(numbers, default=-1) < below


def shorten(value: Any) -> str:
    """The repr of a value, cut to the length that an error has room for."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."
