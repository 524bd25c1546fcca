"""Runs jobs one after the other: those of one rank in this process, those of several in processes
that are started once for all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "scenarios"))

import ranks

from jobs.job import Job
from jobs.oracle import Result, run


def run_all(jobs: Sequence[Job], folder: Path, *, within: float = 600) -> list[Result]:
    """What came of each.

    Args:
        within: seconds that all jobs of several ranks may take.
    """
    made = [run(job, folder) for job in jobs if job.ranks == 1]
    several = [job for job in jobs if job.ranks > 1]
    if several:
        of_ranks = ranks.run(on_rank, 2, several, folder, folder=folder, within=within)
        for same in zip(*of_ranks, strict=True):
            made.append(next((each for each in same if each.outcome != "right"), same[0]))
    return made


def on_rank(rank: ranks.Rank, jobs: Sequence[Job], folder: Path) -> list[Result]:
    made = []
    for number, job in enumerate(jobs):
        print(job, flush=True)  # where a rank hangs, its log ends with the job
        made.append(run(job, folder, rank, checks=number % job.ranks))
    return made
