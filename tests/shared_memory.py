"""What lies in /dev/shm, and what of it nobody uses: other jobs on a machine have theirs there."""

from __future__ import annotations

import os
from pathlib import Path


def shared_memory() -> set[str]:
    """Paths of everything in /dev/shm."""
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}


def abandoned(paths: set[str]) -> set[str]:
    """Those that no living process has mapped."""
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps") if paths else ():
        try:
            used |= {line.split()[-1] for line in maps.read_text().splitlines()} & paths
        except (OSError, IndexError):
            continue
    return {path for path in paths - used if os.path.exists(path)}
