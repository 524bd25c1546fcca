"""`lazy_names`: the names of a package, each imported on first use.

A package imports them under ``if TYPE_CHECKING:``, each as itself, which only type checkers run.
What is imported there is read from its source when the first name is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str, *own: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, which has `__all__` from them, too.

    Args:
        own: names that it defines or imports at once.
    """
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        """By name, the module that has it."""
        import ast  # not for a process that asks for no name

        assert module.__spec__ is not None
        loader: Any = module.__spec__.loader
        return {
            each.name: node.module
            for block in ast.parse(loader.get_source(package)).body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for each in node.names
        }

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted({*own, *homes()})
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(module)[name] = getattr(import_module(homes()[name]), name)
        return vars(module)[name]

    return get, lambda: sorted({*vars(module), *homes()})
