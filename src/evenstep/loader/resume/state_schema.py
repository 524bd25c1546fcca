"""The types of a saved state's values, so that a damaged state is refused when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A schema is a type, a dict of schemas by field, a list of one schema for all its items, or
# (schema, None) for a value that may be None, and (schema, "text") for one that may be that text.

_CHECKSUM = {"places": [int], "digest": int}

JOB_SCHEMA = {
    "world_size": (int, None),
    "buffer_size": (int, "auto"),
    "iterable": ({"num_workers": int, "chunk_size": int}, None),
    "accumulate": int,
}
EPOCH_SCHEMA = {
    "number": int,
    "round": int,
    "step": int,
    "received": int,
    "update": {"samples": int, "supervised_tokens": int, "estimated_tokens": float},
    "window_size": (int, None),
    "window_limit": (int, None),
    "next_entry": (int, None),
    "order": _CHECKSUM,
    "stream": ({"total": int, "tail": int, "leftover": [int]}, None),
}
_WINDOW_COLUMNS = ("numbers", "lengths", "supervised", "patches", "ages", "trained", "entries")
RANK_SCHEMA = {
    **{key: [int] for key in _WINDOW_COLUMNS},
    "taken": int,
    "quota": (int, None),
    "share": {"tail": int, "leftover": [int]},
    "witness": _CHECKSUM,
    "sources": (str, None),
    "skipped": list,
}


def check_schema(value: Any, schema: Any, path: str = "") -> None:
    """
    Raises:
        KeyError: a field is missing.
        TypeError: a value has another type.
    """
    if isinstance(schema, dict) and isinstance(value, Mapping):
        for name, inner in schema.items():
            check_schema(value[name], inner, f"{path}.{name}")
    elif isinstance(schema, list) and isinstance(value, list):
        for item in value:
            check_schema(item, schema[0], path)
    elif isinstance(schema, tuple):
        if value not in schema[1:]:
            check_schema(value, schema[0], path)
    elif not isinstance(schema, type) or not isinstance(value, schema):
        raise TypeError(f"{path.lstrip('.')} is {shorten(value)}")


def shorten(value: Any) -> str:
    """The repr of a value, cut to the length that an error has room for."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."
