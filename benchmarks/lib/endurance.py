"""Whether a long run stays as it began: memory, open files and speed, look by look.

Memory is what no file backs (anonymous pages and shared memory), where processes that share a page
each have their part of it. Code from files is left out: how it is divided depends on what else the
machine runs. A run has ten parts of equally many steps. A trend is the straight line through the
means of the last nine parts, as the first one fills buffers, with its 95 % interval. As programs
may settle in leaps, a trend counts as growth where its interval is above 0.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

from benchmarks.lib.report import Table

PARTS = 10
MEBI = 1 << 20


@dataclass(frozen=True)
class Look:
    steps: int
    seconds: float
    processor: float
    """Seconds of all processes, and of those that they have started and that have ended."""
    memory: Counter[str]
    """Bytes by role."""
    descriptors: Counter[str]
    files: int
    """In the temporary folder."""


@dataclass(frozen=True)
class Watcher:
    """Looks at the process that made it and all that this has started.

    Args:
        temporary: the temporary folder of these processes, and of no others.
        role: what a process is, which has so many ancestors up to the first one; "" leaves
            it out.
    """

    temporary: Path
    role: Callable[[psutil.Process, int], str]
    first: int = field(default_factory=os.getpid)
    shared_before: frozenset[str] = field(default_factory=lambda: frozenset(os.listdir("/dev/shm")))

    def look(self, steps: int) -> Look:
        """From any of the processes, best from one that steps wait for."""
        memory: Counter[str] = Counter()
        descriptors: Counter[str] = Counter()
        processor = 0.0
        generation, depth = [psutil.Process(self.first)], 0
        while generation:
            children = []
            for process in generation:
                with suppress(psutil.Error, OSError):  # it has just ended
                    processor += sum(process.cpu_times()[:4])
                    children += process.children()
                    if role := self.role(process, depth):
                        memory[role] += without_files(process.pid)
                        descriptors[role] += process.num_fds()
            generation, depth = children, depth + 1
        return Look(steps, time.monotonic(), processor, memory, descriptors, self._files())

    def left(self) -> int:
        """Files that are left after the run: temporary ones, and new ones in /dev/shm that no
        process uses, as other jobs of this machine have theirs there."""
        new = {f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - self.shared_before}
        used: set[str] = set()
        for process in psutil.process_iter() if new else ():
            with suppress(psutil.Error):
                used |= {mapped.path for mapped in process.memory_maps()}
        return len(new - used) + self._files()

    def _files(self) -> int:
        return sum(len(names) for _, _, names in os.walk(self.temporary))


@dataclass
class Looks:
    """Those of a run."""

    taken: list[Look] = field(default_factory=list)

    def take(self, look: Look) -> None:
        self.taken.append(look)
        sizes = [f"{role} {size / MEBI:.2f} MiB" for role, size in look.memory.items()]
        files = f"{sum(look.descriptors.values())} descriptors, {look.files} temporary files"
        done = f"{look.steps:,} steps, {look.processor:.0f} s of processor"
        print(f"{done}, {', '.join(sizes)}, {files}", file=sys.stderr, flush=True)

    def tables(self) -> list[Table]:
        """Raises:
        SystemExit: the run was too short.
        """
        parts = [list(part) for part in np.array_split(np.arange(1, len(self.taken)), PARTS)]
        if min(map(len, parts)) < 1:
            sys.exit(f"{len(self.taken)} looks are too few for a trend; take more steps")
        steps = [np.mean([self.taken[i].steps for i in part]) for part in parts]
        rows = []
        for role in self.taken[-1].memory:
            means = [np.mean([self.taken[i].memory[role] for i in part]) for part in parts]
            opened = [np.mean([self.taken[i].descriptors[role] for i in part]) for part in parts]
            rows.append(
                [
                    role,
                    f"{means[1] / MEBI:,.1f}",
                    f"{means[-1] / MEBI:,.1f}",
                    trend(steps[1:], means[1:], 1000).text(0),
                    f"{opened[1]:.1f}",
                    f"{opened[-1]:.1f}",
                ]
            )
        columns = ["role", "MiB, 2nd tenth", "MiB, last tenth", "bytes per 1,000 steps (95 %)"]
        files = ["descriptors, 2nd tenth", "descriptors, last tenth"]
        memory = Table([*columns, *files], rows, "Memory")
        return [memory, self._speed(parts, steps)]

    def _speed(self, parts: Sequence[Sequence[int]], steps: Sequence[float]) -> Table:
        rows, speeds, costs = [], [], []
        for number, part in enumerate(parts):
            first, last = self.taken[part[0] - 1], self.taken[part[-1]]
            count = last.steps - first.steps
            speeds.append(count / (last.seconds - first.seconds))
            costs.append(1000 * (last.processor - first.processor) / count)
            rows.append([f"{number + 1}", f"{speeds[-1]:,.0f}", f"{costs[-1]:.2f}"])
        whole = steps[-1] - steps[1]
        percent = [
            trend(steps[1:], np.divide(each[1:], np.mean(each[1:]) / 100), whole).text(1) + " %"
            for each in (speeds, costs)
        ]
        rows.append(["trend from 2nd to last (95 %)", *percent])
        return Table(["tenth", "steps/s", "processor ms per step"], rows, "Speed")


@dataclass(frozen=True)
class Trend:
    slope: float
    within: float

    def text(self, digits: int) -> str:
        low, high = self.slope - self.within, self.slope + self.within
        return f"{self.slope:+,.{digits}f} ({low:+,.{digits}f} to {high:+,.{digits}f})"


def trend(steps: Sequence[float], values: Iterable[float], scale: float) -> Trend:
    """Of values, per `scale` steps, with its 95 % interval."""
    line = stats.linregress(steps, list(values))
    within = stats.t.ppf(0.975, len(steps) - 2) * line.stderr
    return Trend(scale * line.slope, scale * within)


def without_files(process: int) -> int:
    """Bytes of its memory that no file backs."""
    total = 0
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
            total += 1024 * int(line.split()[1])
    return total
