"""Closes what is open when the process ends.

Before multiprocessing waits for its children to end, which it does in the main process and in ranks
that are themselves its children.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing.util import Finalize
from typing import Any

__all__ = ["close_at_exit", "closed"]

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_registered_in = -1  # the process that has `_close_all` registered


def close_at_exit(owner: Any) -> None:
    """Has ``owner.close()`` called, if it lives until then."""
    global _registered_in
    _open.add(owner)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        Finalize(None, _close_all, exitpriority=100)


def closed(owner: Any) -> None:
    """It is closed already."""
    _open.discard(owner)


def _close_all() -> None:
    for owner in list(_open):
        owner.close()
