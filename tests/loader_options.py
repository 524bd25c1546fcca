"""Options of a `DataLoader`, for helpers that take any of them by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from evenstep import Faults, Memory


def grouped(**options: Any) -> dict[str, Any]:
    """The options, with those that belong to `Memory` and `Faults` in these."""
    for name, kind in (("memory", Memory), ("faults", Faults)):
        given = {f.name: options.pop(f.name) for f in fields(kind) if f.name in options}
        if given:
            options[name] = kind(**given)
    return options
