"""Jobs of one rank, drawn so that all pairs of parts occur."""

from __future__ import annotations

from pathlib import Path

from jobs.draw import covering
from jobs.launch import run_all
from jobs.reports import judge


def test_each_job_trains_rightly_or_is_refused(tmp_path: Path) -> None:
    results = run_all(list(covering(0, 50, ranks=1)), tmp_path)
    judge(results)
