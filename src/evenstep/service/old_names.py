"""Old keyword arguments, which work for one more release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

Places = Mapping[str, "str | Callable[[dict[str, Any], Any], str]"]
"""By old name, its new place: an argument; an argument and a field of it, such as
"faults.standbys"; or a function that is given all arguments and the value, changes the arguments
and says what to give instead."""


def in_groups(
    function: str, given: Mapping[str, Any], places: Places, groups: Mapping[str, type]
) -> dict[str, Any]:
    """Keyword arguments, with old ones moved to where they are now. Warns of each.

    Args:
        function: for the warning.
        groups: classes of the arguments that have fields.
    """
    found = {name: value for name, value in given.items() if name not in places}
    fields: dict[str, dict[str, Any]] = {}
    for name in [each for each in given if each in places]:
        place = places[name]
        if not isinstance(place, str):
            new = place(found, given[name])
        else:
            argument, _, field = place.partition(".")
            new = (
                f"{argument}={groups[argument].__name__}({field}=...)" if field else f"{argument}="
            )
            if field:
                fields.setdefault(argument, {})[field] = given[name]
            else:
                found[argument] = given[name]
        text = f"{name}= of {function} will be removed in the next release; give {new}"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    for argument, values in fields.items():
        found[argument] = replace(found.get(argument) or groups[argument](), **values)
    return found


def takes_old_names(places: Places, groups: Mapping[str, type]) -> Callable[[type[T]], type[T]]:
    """Decorates a class whose constructor also takes old keyword arguments; see `in_groups`."""

    def decorated(made: type[T]) -> type[T]:
        own: Any = made.__init__

        @wraps(own)
        def init(self: T, *arguments: Any, **given: Any) -> None:
            own(self, *arguments, **in_groups(made.__name__, given, places, groups))

        made.__init__ = init  # type: ignore[method-assign, assignment]
        return made

    return decorated
