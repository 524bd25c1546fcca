"""`inherits_from_trl`: TRL's classes by name, as TRL may not be installed."""

from __future__ import annotations

from collections.abc import Collection


def inherits_from_trl(kind: type, names: Collection[str]) -> bool:
    """Whether a class is one of TRL's of these names, or inherits from one."""
    return any(
        each.__name__ in names and each.__module__.partition(".")[0] == "trl"
        for each in kind.__mro__
    )
