"""Threads, processes and memory that run out: an error on every rank, soon, and no hang.

Two ranks; on rank 1 a call fails as it does where the system has no more. A job goes through many
cases, each with a loader of its own. A rank that hangs writes its stacks and fails the job.
"""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from faults import Pass, assert_nothing_runs, one_pass
from ranks import Job, Rank

import evenstep
from documents import Documents

WITHIN = 10.0  # seconds from the begin of a pass to the error on every rank


class Shortage(NamedTuple):
    """A call that fails, from its `nth` on."""

    process: str
    """trainer, batcher or worker."""
    call: str
    """start (a thread), fork, pipe, send or recv (a message)."""
    where: str = ""
    """The thread's name, or the function that calls; empty for all."""
    nth: int = 1
    workers: int = 1


SHORTAGE: Shortage | None = None
"""Of this rank. Batcher and workers are forked, and inherit it."""

_counts: dict[int, int] = {}  # by process: calls so far


def process() -> str:
    name = multiprocessing.current_process().name
    if name == "evenstep-batcher":
        return "batcher"
    return "worker" if ":" in name else "trainer"


def lacks(call: str, where: str) -> bool:
    """Counts a call; whether it fails."""
    short = SHORTAGE
    if short is None or short.call != call or short.where not in ("", where):
        return False
    if short.process != process():
        return False
    _counts[os.getpid()] = _counts.get(os.getpid(), 0) + 1
    return _counts[os.getpid()] >= short.nth


def install() -> None:
    """Lets calls of this process, and of those that it forks, fail."""

    def failing(kind: Any, name: str, call: str, error: Callable[[], BaseException]) -> None:
        function = getattr(kind, name)

        def wrapped(*arguments: Any) -> Any:
            caller = sys._getframe(1).f_code.co_name
            if lacks(call, arguments[0].name if call == "start" else caller):
                raise error()
            return function(*arguments)

        setattr(kind, name, wrapped)

    failing(threading.Thread, "start", "start", lambda: RuntimeError("can't start new thread"))
    failing(Connection, "send", "send", MemoryError)
    failing(Connection, "recv", "recv", MemoryError)
    failing(Connection, "send_bytes", "send_bytes", MemoryError)
    failing(os, "pipe", "pipe", lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    failing(os, "fork", "fork", lambda: BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))


def loader_of(workers: int) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(100_000),
        policy=evenstep.Even(max_tokens=1024),
        num_workers=workers,
        memory=evenstep.Memory(buffer_size=16, chunk_size=4),
        **({"multiprocessing_context": "fork"} if workers else {}),
    )


def go_through(rank: Rank, cases: list[Shortage]) -> list[Pass]:
    install()
    return [run_short(rank, case) for case in cases]


def run_short(rank: Rank, case: Shortage) -> Pass:
    global SHORTAGE
    print("case", case, flush=True)  # so that the log of a rank that hangs says where
    loader = loader_of(case.workers)
    _counts.clear()
    SHORTAGE = case if rank.rank == 1 else None
    found = one_pass(loader, most=200)
    SHORTAGE = None
    loader.close()
    assert_nothing_runs(rank, case)
    return found


def check(cases: list[Shortage], folder: Path) -> None:
    with Job(go_through, 2, cases, folder=folder) as job:
        outcomes = job.join(20 + 2 * len(cases))
    assert not any(outcome.error for outcome in outcomes), outcomes[1].traceback
    other, own = (outcome.value for outcome in outcomes)
    found = [
        f"{case}: {ours}, and on rank 0 {theirs}"
        for case, ours, theirs in zip(cases, own, other, strict=True)
        if not ours.error
        or not theirs.error.startswith(
            "PeerError: " if case.where == "evenstep-exchange" else "PeerError: rank 1"
        )
        or max(ours.seconds, theirs.seconds) > WITHIN
    ]
    assert not found, "\n".join(found)


THREADS = [
    *[
        Shortage("trainer", "start", f"evenstep-{name}", workers=0)
        for name in ("feeder", "batcher", "deliver", "plan")
    ],
    *[
        Shortage("batcher", "start", f"evenstep-{n}")
        for n in ("watch", "control", "collate", "plan")
    ],
    Shortage("batcher", "start", "QueueFeederThread"),
    Shortage("worker", "start", "evenstep-watch"),
    Shortage("trainer", "start", "evenstep-exchange"),
]
PROCESSES = [Shortage("trainer", "fork"), Shortage("batcher", "fork"), Shortage("batcher", "pipe")]
MESSAGES = [
    Shortage("trainer", "send", "_command", 4),
    *[Shortage("trainer", "send", "_send", workers=workers) for workers in (0, 1)],
    *[Shortage("trainer", "send", "reply", nth, workers) for nth, workers in ((1, 0), (4, 1))],
    Shortage("trainer", "recv", "get"),
    *[Shortage("trainer", "recv", "message", nth, workers) for nth, workers in ((1, 1), (4, 0))],
    Shortage("batcher", "recv", "_obey", 4),
    Shortage("batcher", "send", "exchange"),
    Shortage("batcher", "recv", "exchange", 4),
    Shortage("trainer", "recv", "exchange", 4, workers=0),
    Shortage("batcher", "recv", "__iter__"),
    Shortage("batcher", "send", "send", 3),
    Shortage("batcher", "send_bytes", "_feed", 3),
    Shortage("worker", "send_bytes", "_feed", 3),
    Shortage("batcher", "send", nth=6),
]


@pytest.mark.slow
def test_what_runs_out_is_an_error_on_every_rank(tmp_path: Path) -> None:
    check(THREADS + PROCESSES + MESSAGES, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.timeout(900)
def test_memory_that_runs_out_at_any_message(tmp_path: Path, workers: int) -> None:
    places = itertools.product(["trainer", "batcher"][: workers + 1], ["send", "recv"])
    cases = [Shortage(p, c, "", n, workers) for p, c in places for n in range(1, 25)]
    check(cases, tmp_path)
