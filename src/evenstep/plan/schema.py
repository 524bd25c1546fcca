"""Checks of values that were saved and are read back: a damaged document is refused by name.

A schema is a type, a range of whole numbers, a dict of schemas by field, ``{str: schema}`` for a
mapping with any names, a list of one schema for all its items, or (schema, None) for a value that
may be None, and (schema, "text") for one that may be that text. `float` is any finite number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

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
