"""The processor that a collate function uses: found on it, or among what its code refers to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def user_processor(collate_fn: Callable[..., Any]) -> Any | None:
    """The one processor that a collate function holds or refers to, or else that an object held by
    it has; None if there is none, or more than one."""
    held = list(_candidates(collate_fn))
    within = (one for outer in held for one in _attributes(outer))
    for candidates in (held, within):
        found = {id(one): one for one in candidates if is_processor(one)}
        if found:
            return next(iter(found.values())) if len(found) == 1 else None
    return None


def is_processor(value: Any) -> bool:
    """Whether a value makes tokens and media, as processors of transformers do."""
    held = getattr(value, "__dict__", {})
    makers = (held.get("image_processor"), held.get("feature_extractor"))
    return not isinstance(value, type) and callable(value) and any(m is not None for m in makers)


def _candidates(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _candidates(function.func)
    elif inspect.ismethod(function):
        yield from _candidates(function.__self__)
    elif inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        yield from (*variables.nonlocals.values(), *variables.globals.values())
    else:
        yield from _attributes(function)


def _attributes(value: Any) -> Iterator[Any]:
    if not isinstance(value, type | ModuleType):
        yield from getattr(value, "__dict__", {}).values()
