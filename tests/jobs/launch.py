"""Runs jobs one after the other: those of one rank in this process, those of several in processes
that are started once for all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "scenarios"))

import pytest
import ranks

from jobs.job import Job
from jobs.oracle import Result, first_cause, run, run_on_rank


def run_all(jobs: Sequence[Job], folder: Path, *, within: float = 600) -> list[Result]:
    """What came of each.

    Args:
        within: seconds that jobs of several ranks may take.
    """
    made = [run(job, folder) for job in jobs if job.ranks == 1]
    several = [job for job in jobs if job.ranks > 1]
    done = 0
    while done < len(several):
        own = folder / f"from {done}"
        of_ranks = ranks.run(on_rank, 2, several[done:], own, folder=own, within=within)
        made += [first_cause(same) for same in zip(*of_ranks, strict=True)]
        done += len(of_ranks[0])
    return made


def on_rank(rank: ranks.Rank, jobs: Sequence[Job], folder: Path) -> list[Result]:
    """Ends early where one of the ranks has failed and others may wait for it."""
    made, goes_on = [], True
    for number, job in enumerate(jobs):
        if goes_on:
            print(job, flush=True)  # where a rank hangs, its log ends with the job
            checks = rank.rank == number % job.ranks
            result, goes_on = run_on_rank(job, folder, rank.rank, checks=checks)
            made.append(result)
    return made


def judge(results: Sequence[Result], most: int = 20) -> None:
    """Fails if any job went wrong, with each such job as a command that runs it alone."""
    wrong = [each for each in results if each.outcome == "wrong"]
    if wrong:
        more = f"\nand {len(wrong) - most} more" if len(wrong) > most else ""
        pytest.fail("\n".join(map(str, wrong[:most])) + more, pytrace=False)
