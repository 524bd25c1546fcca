"""Several loaders in a job: of groups, one after the other, interleaved in any way, and some that
nobody iterates. First passes must begin in one order."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from faults import FORK, THREADS, assert_died, loader_over
from ranks import Job, Rank, run, run_all
from test_waiting import show_warnings

import evenstep
from documents import Documents

COUNTS = (60, 40)


def interleave(rank: Rank, workers: dict[str, Any]) -> list[list[int]]:
    """Each rank takes their batches in an order of its own, and makes two passes over each."""
    loaders = [loader_over(Documents(n, seed=n), **workers) for n in COUNTS]
    seen: list[list[int]] = [[], []]
    chosen = random.Random(rank.rank)
    for _ in range(2):
        under_way = {number: loader.steps() for number, loader in enumerate(loaders)}
        while under_way:
            # As far apart as what is prefetched allows.
            number = chosen.choice(list(under_way)) if rank.rank else min(under_way)
            step = next(under_way[number], None)
            if step is None:
                del under_way[number]
            else:
                seen[number] += step[1].indices or ()
    return seen


def cross(rank: Rank) -> None:
    """Each rank begins with another loader. Joined, they would lose samples of both datasets."""
    loaders = [loader_over(Documents(200, seed=number)) for number in range(2)]
    for loader in loaders if rank.rank == 0 else loaders[::-1]:
        for _ in loader:
            pass


def test_loaders_that_ranks_begin_in_different_orders_are_not_joined(tmp_path: Path) -> None:
    with Job(cross, 2, folder=tmp_path) as job:
        outcomes = job.join(20)
    for outcome in outcomes:
        assert_died(outcome, "MismatchError", "rank 1 begins its first pass over loader 2 of the 2")


@pytest.mark.parametrize(
    "workers",
    [{**FORK, "num_workers": 1}, pytest.param(THREADS, marks=pytest.mark.soak)],
    ids=["workers", "threads"],
)
def test_ranks_may_take_batches_of_two_loaders_in_different_orders(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    results = run(interleave, 2, workers, folder=tmp_path)
    for number, count in enumerate(COUNTS):
        seen = Counter(results[0][number] + results[1][number])
        assert seen == Counter(2 * list(range(count)))


def one_after_the_other(rank: Rank) -> None:
    """Begun in one order, iterated in two: each rank waits for the other to go on with its."""
    show_warnings()
    loaders = [loader_over(Documents(100_000, seed=n), warn_after=0.5) for n in range(2)]
    passes = [loader.steps() for loader in loaders]
    for number in (0, 1) if rank.rank == 0 else (1, 0):
        for _ in passes[number]:
            pass


def test_ranks_that_wait_for_each_other_in_two_loaders_say_so(tmp_path: Path) -> None:
    with Job(one_after_the_other, 2, folder=tmp_path) as job:
        deadline = time.monotonic() + 20
        for rank in range(2):
            log = tmp_path / f"{rank}.log"
            waits = f"rank {rank} has waited 1 s for rank {1 - rank} (process {job.pid(1 - rank)} "
            while not log.exists() or waits not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            assert "which has started the pass and not asked for a batch for" in log.read_text()


def subgroups(rank: Rank) -> Any:
    """Two data-parallel groups of two ranks each, with documents of their own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = rank.rank % 2
    seen = []
    for _ in range(3):
        loader = loader_over(Documents(60 + own, seed=own), group=groups[own])
        steps = list(loader.steps())
        assert {step.world_size for _, step in steps} == {2}
        assert {step.rank for _, step in steps} == {rank.rank // 2}
        seen.append([i for _, step in steps for i in step.indices])
        time.sleep(0.1 * (rank.rank // 2))  # so that ranks do not give up loaders together
    return seen


def test_a_loader_keeps_to_its_group(tmp_path: Path) -> None:
    results = run(subgroups, 4, folder=tmp_path)
    for which in range(3):
        assert sorted(results[0][which] + results[2][which]) == list(range(60))
        assert sorted({*results[1][which], *results[3][which]}) == list(range(61))


def loader_after_loader(rank: Rank) -> Any:
    """A new loader for every pass, which each rank gives up when it likes."""
    counts = []
    for number in range(6):
        loader = loader_over(Documents(40, seed=number), policy=evenstep.FixedBatch(4))
        counts.append(sum(len(step.indices) for _, step in loader.steps()))
        if (number + rank.rank) % 3 == 0:
            loader.close()
        if (number + rank.rank) % 3 == 1:
            kept = loader  # noqa: F841  until the next one takes its place
        time.sleep(0.1 * ((number + rank.rank) % 2))
    return counts


def length_on_one_rank(rank: Rank) -> Any:
    first, second = (evenstep.DataLoader(Documents(n), batch_size=4) for n in (30, 41))
    if rank.rank == 0:  # as a progress bar does
        assert (len(second), len(first)) == (6, 4)
    return [sum(1 for _ in loader) for loader in (first, second)]


def one_rank_has_more(rank: Rank) -> int:
    """Rank 0 makes a loader that nobody iterates, to look at."""
    if rank.rank == 0:
        loader_over(Documents(10)).close()
    return sum(len(step.indices or ()) for _, step in loader_over(Documents(40)).steps())


def evaluates_alone(rank: Rank) -> int:
    """Rank 0 evaluates amid the epoch."""
    count = 0
    for _, step in loader_over(Documents(100)).steps():
        count += len(step.indices or ())
        if rank.rank == 0 and step.step == 2:
            alone = evenstep.DataLoader(Documents(30, seed=1), batch_size=4, group="local")
            assert sum(len(step.indices or ()) for _, step in alone.steps()) == 30
    return count


def test_ranks_may_make_and_look_at_loaders_as_they_like(tmp_path: Path) -> None:
    after, lengths, more, evaluated = run_all(
        loader_after_loader,
        length_on_one_rank,
        one_rank_has_more,
        evaluates_alone,
        world_size=2,
        folder=tmp_path,
    )
    assert after == [[20] * 6] * 2
    assert lengths == [[4, 6]] * 2
    assert sum(more) == 40
    assert sum(evaluated) == 100
