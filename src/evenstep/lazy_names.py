"""`lazy_names`: the names of a package, each imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        homes: by module, such as ".pad" or "evenstep.cost", the names it defines.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    own = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own[name] = getattr(import_module(home_of[name], package), name)
        return own[name]

    return get, lambda: sorted({*own, *home_of})
