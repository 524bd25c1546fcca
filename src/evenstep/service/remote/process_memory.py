"""The memory of this process and of its workers, as the system counts it."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress

STATM = "/proc/self/statm"


def resident_bytes() -> int:
    """Resident bytes of this process, including files mapped into memory. 0 if unknown."""
    return _pages()[0] * os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Bytes of this process and its multiprocessing children, without files mapped into memory,
    which the system can drop and read again."""
    pids = (str(child.pid) for child in multiprocessing.active_children())
    pages = sum(resident - mapped for resident, mapped in map(_pages, ("self", *pids)))
    return pages * os.sysconf("SC_PAGE_SIZE")


def _pages(process: str = "self") -> tuple[int, int]:
    """Resident ones, and those of them that are mapped from files."""
    with suppress(OSError), open(STATM.replace("self", process)) as file:
        _, resident, mapped, *_ = map(int, file.read().split())
        return resident, mapped
    return 0, 0  # it has ended, or the system has no such file
