"""`ulimit -n`: where open files run out, at whatever number, every rank has an error that says so.

Two ranks; rank 1 may open only so many more files than it has open as a pass begins. A job goes
through all numbers, from none to as many as a pass needs. A rank that hangs writes its stacks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Pass, assert_nothing_runs, loader_over, one_pass
from ranks import Job, Rank

from documents import Documents

COUNT = 60
WITHIN = 10.0  # seconds from the begin of a pass to its end on every rank
STARTS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
]


@contextlib.contextmanager
def few_files(number: int) -> Iterator[None]:
    """This process may open so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest() + number, hard))
    held: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    for file in held[len(held) - number :]:
        os.close(file)
    yield
    for file in held[: len(held) - number]:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def highest() -> int:
    return max(map(int, os.listdir("/proc/self/fd"))) + 1


def go_through(rank: Rank, options: dict[str, Any], more: list[int]) -> list[Pass]:
    """A pass with each number of further files."""
    passes = []
    for number in more:
        print("files", number, flush=True)  # so that the log of a rank that hangs says where
        loader = loader_over(Documents(COUNT), **options)
        next(loader.steps())  # which connects the ranks
        with few_files(number) if rank.rank == 1 else contextlib.nullcontext():
            passes.append(one_pass(loader))
        loader.close()
        assert_nothing_runs(rank, f"with {number} files")
    return passes


EVERY = [*range(40), 60]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (STARTS[0], [0, 3, 60]),
        (STARTS[1], [8, 18, 60]),
        *(pytest.param(options, EVERY, marks=pytest.mark.soak) for options in STARTS),
    ],
)
@pytest.mark.timeout(300)
def test_any_number_of_open_files_is_enough_or_an_error_on_every_rank(
    tmp_path: Path, options: dict[str, Any], more: list[int]
) -> None:
    with Job(go_through, 2, options, more, folder=tmp_path) as job:
        outcomes = job.join(30 + 2 * len(more))
    assert not any(outcome.error for outcome in outcomes), outcomes[1].traceback
    other, own = (outcome.value for outcome in outcomes)
    assert not own[-1].error, "not enough cases: the last one lacks files too"
    for number, mine, theirs in zip(more, own, other):
        case = f"{number} files: {mine}, and on rank 0 {theirs}"
        assert max(mine.seconds, theirs.seconds) < WITHIN, case
        if mine.error:
            assert "ulimit -n" in mine.error, case
            assert theirs.error.startswith("PeerError: rank 1"), case
            assert "ulimit -n" in theirs.error, case
        else:
            assert (theirs.error, mine.samples + theirs.samples) == ("", COUNT), case


def few_from_the_start(rank: Rank) -> None:
    """As `ulimit -n 64` is for a rank of its own, which has 16 files as it begins: this one is
    forked from pytest, whose open files it has too."""
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in itertools.count() if number not in taken)
    limit = next(itertools.islice(free, 64 - 16, None))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def with_workers(rank: Rank) -> list[Pass]:
    return [
        one_pass(loader_over(Documents(COUNT), num_workers=n, multiprocessing_context="fork"))
        for n in (4, 16)
    ]


def test_64_open_files_are_enough_for_a_rank_with_4_workers(tmp_path: Path) -> None:
    with Job(with_workers, 2, folder=tmp_path, prepare=few_from_the_start) as job:
        outcomes = job.join(40)
    few, many = zip(*(outcome.value for outcome in outcomes), strict=True)
    assert sum(each.samples for each in few) == COUNT, few
    assert all("ulimit -n" in each.error for each in many), many
