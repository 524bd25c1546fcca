"""Closes loaders that are open when the process ends.

This happens before multiprocessing waits for child processes to end, as it does in the main process
and in ranks that multiprocessing started.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing.util import Finalize
from typing import Any

__all__ = ["close_at_exit", "closed"]

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_registered_in = -1  # the process in which `_close_all` is registered


def close_at_exit(owner: Any) -> None:
    """Registers ``owner.close()`` to be called, if the owner lives until then."""
    global _registered_in
    _open.add(owner)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        Finalize(None, _close_all, exitpriority=100)


def closed(owner: Any) -> None:
    """Unregisters an owner that is closed."""
    _open.discard(owner)


def _close_all() -> None:
    for owner in list(_open):
        owner.close()
