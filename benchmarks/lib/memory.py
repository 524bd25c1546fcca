"""Memory of processes. Imports no torch, which a process that is measured may not need."""

from __future__ import annotations

import contextlib

import psutil


def memory() -> float:
    """Bytes (PSS) of this process and all that it has started."""
    total = psutil.Process().memory_full_info().pss
    for process in started():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return float(total)


def started() -> list[psutil.Process]:
    """The processes that this one has started, and those that they have."""
    return psutil.Process().children(recursive=True)
