"""Ranks whose clocks differ: every sample comes once. A rank's monotonic clock differs truly, in a
time namespace, which takes root's rights. No process compares the times of two, and none goes by
the wall clock."""

from __future__ import annotations

import ctypes
import re
import subprocess
import time
from pathlib import Path

import pytest
from faults import FORK, loader_over
from ranks import Rank, run

import evenstep
from documents import Documents

COUNT = 200
NEW_TIME = 0x80


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
    "service/registry/role_status.py",
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
