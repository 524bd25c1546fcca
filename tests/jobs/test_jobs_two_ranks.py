"""Jobs of two ranks, drawn so that all pairs of parts occur; and, in soak runs, jobs drawn from the
clock's seeds for as long as is asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jobs.draw import covering, draw
from jobs.launch import run_all
from jobs.reports import judge

SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("EVENSTEP_SOAK_SEED", "0"))
AT_A_TIME = 200


def test_each_job_trains_rightly_or_is_refused(tmp_path: Path) -> None:
    results = run_all(list(covering(1000, 30, ranks=2)), tmp_path)
    judge(results)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_thousands_of_jobs(tmp_path: Path) -> None:
    """`EVENSTEP_SOAK_SEED` draws others."""
    end, results, first = time.monotonic() + SECONDS, [], SEED * 1_000_000
    while time.monotonic() < end:
        folder = tmp_path / str(first)
        folder.mkdir()
        jobs = [draw(first + number, seeds=1000) for number in range(AT_A_TIME)]
        results += run_all(jobs, folder)
        print(f"seeds {first} to {first + AT_A_TIME - 1}", flush=True)
        first += AT_A_TIME
    judge(results)
