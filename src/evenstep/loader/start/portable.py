"""A loader's spec as bytes for another process, if a copy is cheap and as good as the original."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass
from multiprocessing import process
from pathlib import Path
from typing import Any

import torch

from evenstep.errors import described
from evenstep.loader.start.globals_read import Descriptions, describe_globals
from evenstep.loader.start.limited_pickle import LimitedPickler, NotPortable

LIMIT = 16 << 20  # bytes; more take longer to send than to fork


@dataclass(frozen=True)
class Imports:
    """What a process has to import before it can unpickle something."""

    preparation: dict[str, Any]
    """For ``multiprocessing.spawn.prepare``: where modules are found, and the main one."""
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Portable:
    """An object, and what must be the same where it is unpickled."""

    pickle: bytes
    imports: Imports
    globals: Descriptions
    environ: dict[str, str]
    authkey: bytes
    default_dtype: torch.dtype


def make_portable(obj: Any) -> Portable:
    """
    Raises:
        NotPortable: it cannot be pickled, is large, is in shared memory, or is defined in a script
            that must not be imported; or there is no working directory, say.
    """
    try:
        return _make_portable(obj)
    except NotPortable:
        raise
    except Exception as error:  # of the user's objects: looking at one may raise anything
        raise NotPortable(described(error)) from error


def _make_portable(obj: Any) -> Portable:
    pickler = LimitedPickler(LIMIT, protocol=5)
    pickled = pickler.bytes_of(obj)
    modules = {thing.__module__ for thing in pickler.named}
    preparation = {"sys_path": list(sys.path), "sys_argv": list(sys.argv), "dir": os.getcwd()}
    if "__main__" in modules:
        preparation.update(_import_of_main())
    return Portable(
        pickle=pickled,
        imports=Imports(preparation, tuple(sorted(modules - {"__main__"}))),
        globals=describe_globals(pickler.named),
        environ=dict(os.environ),
        authkey=bytes(process.current_process().authkey),
        default_dtype=torch.get_default_dtype(),
    )


def _import_of_main() -> dict[str, str]:
    """How another process imports the script that this one runs."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    name = main.__spec__.name if main.__spec__ is not None else ""
    if path is None or not os.path.exists(path) or name.endswith("__main__"):
        raise NotPortable("it is defined interactively, in no module that can be imported")
    if not _is_guarded(path):
        raise NotPortable(f'it is defined in {path}, which has no `if __name__ == "__main__":`')
    return {"init_main_from_name": name} if name else {"init_main_from_path": os.path.abspath(path)}


def _is_guarded(path: str) -> bool:
    """Whether a script distinguishes being run from being imported."""
    for node in ast.parse(Path(path).read_bytes()).body:
        if isinstance(node, ast.If):
            words = {getattr(part, "id", getattr(part, "value", None)) for part in _parts(node)}
            if {"__name__", "__main__"} <= words:
                return True
    return False


def _parts(node: ast.If) -> list[Any]:
    return [part for part in ast.walk(node.test) if isinstance(part, (ast.Name, ast.Constant))]
