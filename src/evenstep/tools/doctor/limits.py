"""What this process may use: files, tasks, memory and processors.

A container or a scheduler limits them by control groups. Linux has two versions of these, often
side by side: all limits in one folder, or a folder for each kind.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evenstep.tools.doctor.finding import Finding

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_FEW_FILES = 128
"""Below it, a rank with 16 workers does not start."""
_SOME_FILES = 1024
"""Below it, windows of some thousand samples do not fit: each slab that holds some is a file."""
_SOME_TASKS = 512
"""About what 8 ranks with 8 workers each have."""
_GIB = 1 << 30
WINDOW_BYTES = _GIB
"""The default of ``Memory.buffer_bytes``, which cannot be imported without torch."""


def open_files() -> Iterator[Finding]:
    if resource is None:
        return
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    found, remedy = f"{soft:,} may be open (ulimit -n)", ""
    if soft < _SOME_FILES:
        found += ": too few for many workers or large windows"
        remedy = f"ulimit -n {min(hard, 65536)}, before the job starts"
        if hard < _SOME_FILES:
            remedy = f"have the hard limit of {hard:,} raised (ulimit -Hn), then the soft one"
    yield Finding(check="open files", found=found, remedy=remedy, breaks=soft < _FEW_FILES)


def tasks() -> Iterator[Finding]:
    if resource is None:
        return
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    own = math.inf if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit
    left = min(own, tasks_left())
    found = "no limit" if left == math.inf else f"{left:,.0f} processes and threads may start"
    remedy = "raise ulimit -u, or the limit of the container (docker run --pids-limit)"
    yield Finding(check="tasks", found=found, remedy=remedy if left < _SOME_TASKS else "")


def memory() -> Iterator[Finding]:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    limit = min(memory_limit(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found, remedy = f"{limit / _GIB:.1f} GiB", ""
    if limit < 2 * WINDOW_BYTES:
        found += f", and the windows of one rank may take {WINDOW_BYTES / _GIB:.0f} GiB"
        remedy = (
            "pass memory=evenstep.Memory(buffer_bytes=...), or give the job more memory; what "
            "exceeds the limit is killed"
        )
    yield Finding(check="memory", found=found, remedy=remedy)


def processors() -> Iterator[Finding]:
    there = os.cpu_count() or 1
    granted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    usable = min(granted, processor_time())
    found, remedy = f"{usable:g} of {there}", ""
    if usable < min(2, there):
        found += ": workers and trainer take turns on them"
        remedy = "ask for more (srun --cpus-per-task=8, docker run --cpus=8)"
    yield Finding(check="processors", found=found, remedy=remedy)


def memory_limit() -> float:
    """Bytes that the control groups allow; infinity if there is no limit."""
    names = "memory.max", "memory.limit_in_bytes"
    return min(
        (_number(folder / name) for folder in _folders("memory") for name in names),
        default=math.inf,
    )


def tasks_left() -> float:
    """Processes and threads that the control groups still allow."""
    left = (
        _number(folder / "pids.max") - _number(folder / "pids.current", 0)
        for folder in _folders("pids")
    )
    return min(left, default=math.inf)


def processor_time() -> float:
    """Seconds of processors that the control groups allow in a second."""
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
