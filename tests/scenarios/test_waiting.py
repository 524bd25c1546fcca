"""A rank that waits says for whom, since when, and what that one does."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

from faults import FORK, loader_over, staff
from ranks import Job, Rank

import evenstep
from documents import Documents

SECONDS = 2.0  # until a rank that does not answer is named
SLOW = 1.4  # and one that answers


class Slow(Documents):
    """One document takes a while."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 100:
            time.sleep(SLOW)
        return super().__getitem__(index)


def show_warnings() -> None:
    """In the rank's log; the test runner's own handlers keep them."""
    logging.getLogger("evenstep").addHandler(logging.StreamHandler())


def hold_everybody_up(rank: Rank) -> tuple[int, list[list[Any]]]:
    """Rank 1 is late in every way there is. Says when; gives the samples of each step."""
    show_warnings()
    last = rank.rank == 1
    dataset = Slow(200) if last else Documents(200)
    policy = evenstep.TokenBudget(512)  # under which every third sample is rank 1's
    loader = loader_over(dataset, policy=policy, prefetch=1, warn_after=0.8)
    passes: list[list[Any]] = []
    for number in range(2):
        if last:
            time.sleep(SECONDS)
        print(f"--- pass {number}", flush=True)
        passes.append([])
        loader.set_epoch(0)
        for _, step in loader.steps():
            passes[-1].append(step.indices)
            if last and number == 1 and step.step == 4:
                time.sleep(SLOW)
    loader.close()
    return os.getpid(), passes


def test_a_rank_that_is_waited_for_is_named_with_what_it_does(tmp_path: Path) -> None:
    with Job(hold_everybody_up, 3, folder=tmp_path) as job:
        outcomes = job.join(30)
    pid = outcomes[1].value[0]
    first, second = zip(*(outcome.value[1] for outcome in outcomes))
    assert first == second, "lateness changes no batch"
    assert {i for own in first for step in own for i in step} == {*range(200)}
    late = re.escape(f"rank 1 (process {pid} on {socket.gethostname()}), which has ")
    for rank in (0, 2):
        print(outcomes[rank].log)
        first, second = re.split("--- pass 1\n", outcomes[rank].log)
        waited = rf"rank {rank} has waited \d+ s for "
        assert re.search(waited + r"ranks to begin .* this loader: rank 1\n", first)
        assert re.search(waited + late + r"waited \d+ s for its dataset", first)
        assert re.search(waited + late + r"not answered for \d+ s and has not started", second)
        assert re.search(waited + late + r"been busy with step \d+ for \d+ s\n", second)
    assert re.search(r"rank 1 has waited \d+ s for its own dataset", outcomes[1].log)


def one_epoch(rank: Rank, options: dict[str, Any]) -> int:
    show_warnings()
    count = 0
    for _, step in loader_over(Documents(300), **options).steps():
        count += len(step.indices or ())
        if step.step == 2:
            rank.say("training", staff(rank))
        time.sleep(0.01)
    return count


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    with Job(one_epoch, 2, {**FORK, "warn_after": 0.8}, folder=tmp_path) as job:
        for rank in range(2):
            job.heard(rank, "training")
        job.signal(1, signal.SIGSTOP, children=True)
        time.sleep(SECONDS)
        job.signal(1, signal.SIGCONT, children=True)
        waits, _ = outcomes = job.join(20)
    assert sum(outcome.value for outcome in outcomes) == 300
    stopped = f"rank 1 (process {job.pid(1)} on {socket.gethostname()}), which has not answered"
    assert stopped in waits.log
    assert "is stopped (SIGSTOP or a debugger)" in waits.log
