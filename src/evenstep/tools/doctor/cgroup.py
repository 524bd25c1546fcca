"""The control groups of this process, which limit it in a container or under a scheduler.

Linux has two versions of them, often side by side: all limits in one folder, or a folder for each
kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def memory_limit() -> float:
    """Bytes; infinity if there is no limit."""
    names = "memory.max", "memory.limit_in_bytes"
    limits = (_number(folder / name) for folder in _folders("memory") for name in names)
    return min(limits, default=math.inf)


def tasks_left() -> float:
    """Processes and threads that may still be started."""
    left = (
        _number(folder / "pids.max") - _number(folder / "pids.current", 0)
        for folder in _folders("pids")
    )
    return min(left, default=math.inf)


def processors() -> float:
    """As many as the time that this process may use in a second."""
    least = math.inf
    for folder in _folders("cpu"):
        with suppress(OSError, ValueError):
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            least = min(least, quota / period)
        quota_us = _number(folder / "cpu.cfs_quota_us")
        if quota_us > 0:  # -1 is none
            least = min(least, quota_us / _number(folder / "cpu.cfs_period_us", 100_000))
    return least


def _folders(kind: str) -> Iterator[Path]:
    """Of the groups with limits of that kind, each after the group within it."""
    with suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and kind not in kinds.split(","):
                continue
            top = _ROOT / kind if kinds else _ROOT
            own = top / path.strip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def _number(file: Path, default: float = math.inf) -> float:
    """The default where the file is missing, or says "max"."""
    with suppress(OSError, ValueError):
        return float(file.read_text())
    return default
