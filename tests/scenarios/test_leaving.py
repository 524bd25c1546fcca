"""A pass may be left at any step, in any way, as often as one likes; nothing of it stays."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import (
    FORK,
    THREADS,
    end_of,
    loader_over,
    own_threads,
    staff,
)
from ranks import Job, Rank, run

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError

COUNT = 120
LEAVES = 6
PERSISTENT = {**FORK, "persistent_workers": True}
with_and_without_workers = pytest.mark.parametrize(
    "workers", [PERSISTENT, THREADS], ids=["persistent workers", "threads"]
)


def held() -> tuple[int, list[str]]:
    """How many files this process has open, and the threads that evenstep runs in it."""
    gc.collect()
    files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    # Shared memory is kept to be used again; that it does not grow is tested where it is made.
    files = [name for name in files if "memfd:evenstep" not in name]
    return len(files), own_threads()


def settled(expected: Any) -> Any:
    """What this process holds, as soon as it is what is expected, or after a while."""
    deadline = time.monotonic() + 20
    while (now := held()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def steady() -> Any:
    """What this process holds when nothing of the pass that was left is still ending."""
    deadline = time.monotonic() + 20
    before = held()
    while time.monotonic() < deadline:
        time.sleep(0.3)
        if (now := held()) == before:
            break
        before = now
    return before


def leave_again_and_again(rank: Rank, workers: dict[str, Any]) -> Any:
    """Leaves passes after 0, 1, 2, 3 steps and so on, then makes a whole one."""
    loader = loader_over(Documents(COUNT), shuffle=True, **workers)
    for number in range(LEAVES):
        if number == 4:
            busy = steady()
        for steps, _ in enumerate(loader):
            if steps == number % 4:
                break
    settled_at = settled(busy)
    loader.set_epoch(0)
    whole = [step.indices for _, step in loader.steps()]
    loader.close()
    return whole, rank.children(), busy, settled_at


@with_and_without_workers
def test_passes_may_be_left_again_and_again_and_the_next_is_whole(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    left = run(leave_again_and_again, 2, workers, folder=tmp_path / "left", within=100)
    assert [result[0] for result in left] == run(one_epoch, 2, folder=tmp_path / "never")
    for _, children, before, after in left:
        assert children == []
        assert after == before, "files or threads add up"


def one_epoch(rank: Rank) -> Any:
    return [step.indices for _, step in loader_over(Documents(COUNT), shuffle=True).steps()]


def drop(rank: Rank, workers: dict[str, Any]) -> Any:
    """Loses loader and iterator amid a pass, in every way, and makes another pass after each."""
    loader_over(Documents(COUNT)).close()

    def lose(loader_first: bool) -> None:
        loader = loader_over(Documents(100_000), **workers)
        steps = loader.steps()
        batches = [next(steps) for _ in range(3)]
        if loader_first:
            del loader, steps
        else:
            del steps, loader
        assert all(len(batch["input_ids"]) for batch, _ in batches)  # which outlive them

    def lose_in_a_thread() -> None:
        thread = threading.Thread(target=lose, args=(True,))
        thread.start()
        thread.join()

    def lose_in_a_cycle() -> None:
        loader = loader_over(Documents(100_000), **workers)
        steps = loader.steps()
        next(steps)
        cycle: list[Any] = [loader, steps]
        cycle.append(cycle)

    def whole_pass() -> int:
        steps = loader_over(Documents(COUNT), **workers).steps()
        return sum(len(step.indices) for _, step in steps)

    before, outcomes = held(), []
    for way in (lambda: lose(True), lambda: lose(False), lose_in_a_thread, lose_in_a_cycle):
        way()
        outcomes.append((settled(before), rank.children(), whole_pass()))
    return [(after == before, left, total) for after, left, total in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [FORK, THREADS], ids=["workers", "threads"])
def test_a_busy_loader_that_nobody_holds_any_more_ends_all_it_started(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    (outcomes,) = run(drop, 1, workers, folder=tmp_path, within=80)
    assert outcomes == [(True, [], COUNT)] * 4


class Clogging(Documents):
    """Documents of which a chunk is more than a pipe takes, and so is a batch."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "text": "x" * 30_000}


def stall(rank: Rank) -> None:
    """Takes three steps and then no more."""
    # With fixed shares workers read on until nothing takes any more.
    policy = evenstep.TokenBudget(max_tokens=1024)
    loader = loader_over(Clogging(100_000), policy=policy, **FORK)
    steps = loader.steps()
    for _ in range(3):
        next(steps)
    rank.say("training", staff(rank))
    time.sleep(3600)


def waits_for_a_pipe(pid: int) -> bool:
    """Whether a thread of a process waits until a pipe has room."""
    where = []
    for task in psutil.Process(pid).threads():
        where.append(Path(f"/proc/{pid}/task/{task.id}/wchan").read_text())
    if set(where) == {"0"}:
        pytest.skip("this kernel does not tell what a process waits for")
    return any("pipe_write" in name for name in where)


def test_a_trainer_killed_while_its_children_wait_for_full_pipes_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with Job(stall, 1, folder=tmp_path) as job:
        everybody = [job.heard(0, "training")]
        (own,) = everybody
        deadline = time.monotonic() + 20
        # The workers share a pipe, so one waits for room in it and the other for its turn.
        while not (any(map(waits_for_a_pipe, own.workers)) and waits_for_a_pipe(own.batcher[0])):
            assert time.monotonic() < deadline, "the pipes do not fill"
            time.sleep(0.05)
        job.signal(0, signal.SIGKILL)
        end_of(job, everybody)


def make_a_pass_after_it_closed(rank: Rank) -> int:
    """A pass that is closed says so, and the loader goes on to the next."""
    loader = loader_over(Documents(COUNT), **PERSISTENT)
    steps = loader.steps()
    next(steps)
    loader.close()
    with pytest.raises(LoaderDiedError, match="was closed; iterate the loader again"):
        next(steps)
    return sum(len(step.indices) for _, step in loader.steps())


def test_a_loader_that_was_closed_amid_a_pass_may_be_iterated_again(tmp_path: Path) -> None:
    assert sum(run(make_a_pass_after_it_closed, 2, folder=tmp_path)) == COUNT
