"""What this process may use: files, tasks, memory and processors."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from evenstep.tools.doctor import cgroup
from evenstep.tools.doctor.finding import Finding

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
    try:
        import resource
    except ImportError:  # not every system has it
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = math.inf if soft == resource.RLIM_INFINITY else soft
    found, remedy = f"{limit:,} may be open (ulimit -n)", ""
    if limit < _SOME_FILES:
        found += ": too few for many workers or large windows"
        most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        remedy = f"ulimit -n {most}, before the job starts"
        if most < _SOME_FILES:
            remedy = f"have the hard limit of {hard:,} raised (ulimit -Hn), then the soft one"
    yield Finding(check="open files", found=found, remedy=remedy, breaks=limit < _FEW_FILES)


def tasks() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:
        return
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    own = math.inf if limit == resource.RLIM_INFINITY or os.geteuid() == 0 else limit
    left = min(own, cgroup.tasks_left())
    found = "no limit" if left == math.inf else f"{left:,.0f} processes and threads may start"
    remedy = "raise ulimit -u, or the limit of the container (docker run --pids-limit)"
    yield Finding(check="tasks", found=found, remedy=remedy if left < _SOME_TASKS else "")


def memory() -> Iterator[Finding]:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = min(cgroup.memory_limit(), machine)
    found = f"{limit / _GIB:.1f} GiB"
    if limit < machine:
        found += f" in this container, of {machine / _GIB:.0f} GiB"
    remedy = ""
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
    usable = min(granted, cgroup.processors())
    found, remedy = f"{usable:g} of {there}", ""
    if usable < min(2, there):
        found += ": workers and trainer take turns on them"
        remedy = "ask for more (srun --cpus-per-task=8, docker run --cpus=8)"
    yield Finding(check="processors", found=found, remedy=remedy)
