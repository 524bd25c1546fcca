"""Clocks that jump, and ranks whose clocks differ: passes go on, and every sample comes once.

The clocks of a process are moved by a library that is built here and loaded before all others. A
rank's monotonic clock may also differ truly, in a time namespace, which takes root's rights. No
process compares the times of two, and none goes by the wall clock.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import FORK, loader_over
from ranks import Rank, run

import evenstep
from documents import Documents

COUNT = 200
POLICY = evenstep.TokenBudget(300)
HERE = Path(__file__).parent
NEW_TIME = 0x80
DAY, HOUR = 86400.0, 3600.0
JUMPS = {4: (DAY, 0.0), 8: (-DAY, 0.0), 12: (-DAY, HOUR)}
"""By step: by how much the wall clock and the monotonic one are ahead from then on."""

SCRIPT = """
import pathlib, sys
import test_clocks
test_clocks.job_under_jumps(pathlib.Path(sys.argv[1]))
"""


class Clock:
    """This rank's clocks, as clock_jumps.c has them."""

    def __init__(self, slot: int) -> None:
        with open(os.environ["CLOCK_JUMPS"], "r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 4096)
        self._slot = slot
        self._set(0.0, 0.0)
        ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "clock_slot").value = slot

    def jump(self, wall: float, monotonic: float) -> None:
        before = time.time(), time.monotonic()
        self._set(wall, monotonic)
        moved = time.time() - before[0], time.monotonic() - before[1]
        print(f"moved {moved[0] / DAY:.0f} {moved[1] / HOUR:.0f}", flush=True)

    def _set(self, wall: float, monotonic: float) -> None:
        struct.pack_into("dd", self._ahead, 16 * self._slot, wall, monotonic)


def one_pass_under_jumps(rank: Rank) -> tuple[list[int], int]:
    clock = Clock(rank.rank)
    seen: list[int] = []
    steps = 0
    for _, step in loader_over(Documents(COUNT), policy=POLICY, **FORK).steps():
        steps += 1
        seen += step.indices or ()
        if rank.rank == 1 and step.step in JUMPS:
            clock.jump(*JUMPS[step.step])
        time.sleep(0.01)
    return seen, steps


def job_under_jumps(folder: Path) -> None:
    results = run(one_pass_under_jumps, 2, folder=folder)
    assert sorted(index for seen, _ in results for index in seen) == list(range(COUNT))
    assert results[0][1] == results[1][1] > max(JUMPS)
    moved = re.findall(r"moved (\S+) (\S+)", (folder / "1.log").read_text())
    assert moved == [("1", "0"), ("-2", "0"), ("0", "1")], "days and hours"


@pytest.mark.soak  # torch is imported once more
@pytest.mark.timeout(300)
def test_clocks_that_jump_on_one_rank_cost_nothing(tmp_path: Path) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    library, jumps = tmp_path / "clock_jumps.so", tmp_path / "jumps"
    source = str(HERE / "clock_jumps.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", source, "-o", library, "-ldl", "-lm"], check=True
    )
    jumps.write_bytes(bytes(4096))
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "LD_PRELOAD": str(library),
            "CLOCK_JUMPS": str(jumps),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def elsewhere_in_time(rank: Rank) -> None:
    if rank.rank == 1:
        libc = ctypes.CDLL(None, use_errno=True)
        before = time.monotonic()
        if libc.unshare(NEW_TIME):
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/timens_offsets").write_text("monotonic 1000000 0\n")
        with open("/proc/self/ns/time_for_children") as namespace:
            if libc.setns(namespace.fileno(), NEW_TIME):
                raise OSError(ctypes.get_errno(), "setns")
        assert time.monotonic() - before > 999_000


def one_pass(rank: Rank) -> list[int]:
    loader = loader_over(Documents(COUNT), **FORK, timeout=60, warn_after=5.0)
    return [index for _, step in loader.steps() for index in step.indices or ()]


def test_ranks_whose_monotonic_clocks_differ(tmp_path: Path) -> None:
    try:
        subprocess.run(["unshare", "-T", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no time namespace can be made: {error}")
    results = run(one_pass, 2, folder=tmp_path, prepare=elsewhere_in_time)
    assert sorted(index for seen in results for index in seen) == list(range(COUNT))


TELLS_WHEN = {
    "run_log.py",
    "service/registry/event_log.py",
    "service/registry/role_watch.py",
    "service/backends/scaling_thread.py",
}
"""What says to people when something happened, and measures nothing by it."""


def test_nothing_reads_the_wall_clock() -> None:
    package = Path(evenstep.__file__).parent
    wall = re.compile(r"\btime\.time\(|\bfrom time import|datetime\.(now|utcnow)")
    reading = [p for p in package.rglob("*.py") if wall.search(p.read_text())]
    found = {path.relative_to(package).as_posix() for path in reading}
    assert found == TELLS_WHEN, "use time.monotonic()"
