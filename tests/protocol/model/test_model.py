"""Model checking: small jobs, explored in every interleaving of what may happen to their ranks.

`model_explorer` says what is checked.
"""

from __future__ import annotations

import time

import pytest
from model_check import check
from model_explorer import Found
from model_job import Job
from model_mutations import BEFALLS, MUTATIONS
from model_worlds import FIRST_WINDOW, LARGE, SMALL

import evenstep.protocol.window_size as window_size
from mutation import Mutation

RESHARED = ("updates of 2 steps", "even, dealt")
"""Jobs that are also resumed with other windows and on other numbers of ranks here; by the soak all
are."""
OF_THE_SOAK = (
    "sorted pools",
    "all stop with the first",
    "a step a round, shares unknown",
    "even, windows shrink to what memory allows",
    "three ranks",
    "fixed windows of what memory allows",
    "three ranks, own samplers",
    "even, dealt one by one",
)
SECONDS = 600
"""Of processor time, after which the soak begins no further job."""


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_size, "FIRST_SIZE", FIRST_WINDOW)


@pytest.mark.parametrize(
    "job", [job for job in SMALL.values() if job.name not in OF_THE_SOAK], ids=lambda job: job.name
)
def test_no_interleaving_breaks_an_invariant(job: Job) -> None:
    check(job, depth=int(job.name in RESHARED), later_faults=())


@pytest.mark.parametrize(
    ("job", "mutation"),
    [
        pytest.param(SMALL[job], mutation, id=mutation.name)
        for job, mutations in MUTATIONS.items()
        for mutation in mutations
    ],
)
def test_a_fault_in_the_protocol_is_found(job: Job, mutation: Mutation) -> None:
    with mutation.applied(), pytest.raises(Found):
        check(job, faults=BEFALLS.get(mutation.name, ()), later_faults=())


@pytest.mark.soak
@pytest.mark.timeout(10 * SECONDS)
def test_no_interleaving_breaks_an_invariant_in_all_jobs_and_their_resumes() -> None:
    begin = time.process_time()
    for job in [*SMALL.values(), *LARGE.values()]:
        if (seconds := time.process_time() - begin) > SECONDS:
            print(f"{job.name} is not explored: {SECONDS} seconds are over")
            continue
        check(job, depth=2 if job.name in RESHARED else 1)
        print(f"{job.name:45} {time.process_time() - begin - seconds:7.1f} s", flush=True)
