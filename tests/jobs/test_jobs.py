"""Jobs drawn so that all pairs of parts occur; in soak runs, as many as the given time allows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jobs.draw import covering, draw
from jobs.launch import judge, run_all

SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("EVENSTEP_SOAK_SEED", "0"))
AT_A_TIME = 200


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "count", "ranks"), [(0, 32, 1), (1000, 18, 2)])
def test_each_job_trains_rightly_or_is_refused(
    tmp_path: Path, seed: int, count: int, ranks: int
) -> None:
    judge(run_all([*covering(seed, count, ranks=ranks)], tmp_path))


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
