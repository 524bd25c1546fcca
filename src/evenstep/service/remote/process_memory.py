"""The memory of this process and of its workers, as the system counts it."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress

STATM = "/proc/self/statm"


def resident_bytes() -> int:
    """Of this process, with what is mapped from files. 0 on a system that does not say."""
    return _pages()[0] * os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Of this process and of those that multiprocessing has started in it, without what is mapped
    from files: only that cannot be had again by dropping it."""
    pids = (str(child.pid) for child in multiprocessing.active_children())
    pages = sum(resident - mapped for resident, mapped in map(_pages, ("self", *pids)))
    return pages * os.sysconf("SC_PAGE_SIZE")


def _pages(process: str = "self") -> tuple[int, int]:
    """Resident ones, and those of them that are mapped from files."""
    with suppress(OSError), open(STATM.replace("self", process)) as file:
        _, resident, mapped, *_ = map(int, file.read().split())
        return resident, mapped
    return 0, 0  # it has ended, or the system has no such file
