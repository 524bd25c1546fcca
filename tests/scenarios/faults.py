"""What tests of faults share: ranks that train on and on, and the proof that nothing is left."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from ranks import GRACE, Job, Outcome, Rank

import evenstep
import evenstep.loader  # now, and not in every rank that is forked
from documents import Documents
from loader_options import grouped

WITHIN = 10.0  # seconds from the fault to the end of every rank
FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
THREADS: dict[str, Any] = {}


class Sticky(Documents):
    """From some document on, each takes longer than any test."""

    def __init__(self, first: int) -> None:
        super().__init__(100_000)
        self.first = first

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.first:
            time.sleep(3600)
        return super().__getitem__(index)


class Wordy(Documents):
    """Documents that are mostly text, which fills the pipes between processes."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "text": [f"{index} {i}" for i in range(2000)]}


@dataclass(frozen=True)
class Staff:
    """Who works for a rank, and what it has open to the network."""

    batcher: list[int]
    workers: list[int]
    listening: set[str]
    """Sockets on which the rank awaits connections; its children inherit them."""


def loader_over(dataset: Any, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        dataset,
        **grouped(**{"policy": evenstep.Even(max_tokens=1024), "buffer_size": 32, **options}),
    )


def train(
    rank: Rank, options: dict[str, Any], dataset: Any = None, pause: float = 0.01, begin: int = 3
) -> None:
    """Trains on and on; says who works for it once it has made a few steps."""
    loader = loader_over(Documents(100_000) if dataset is None else dataset, **options)
    if begin == 0:
        rank.say("training")
    for steps, _ in enumerate(loader, start=1):
        if steps == begin:
            rank.say("training", staff(rank))
        time.sleep(pause)


class Pass(NamedTuple):
    """What came of one."""

    steps: int
    samples: int
    seconds: float
    error: str
    """As evenstep describes it; empty where there was none."""


def one_pass(loader: evenstep.DataLoader, most: int | None = None) -> Pass:
    """
    Args:
        most: steps after which it is left, so that what never fails fails the test.
    """
    steps, samples, error, begun = 0, 0, "", time.monotonic()
    try:
        for _, step in loader.steps():
            steps += 1
            samples += len(step.indices or ())
            if steps == most:
                break
    except (evenstep.EvenstepError, MemoryError, OSError) as caught:
        error = evenstep.errors.described(caught)
    return Pass(steps, samples, time.monotonic() - begun, error)


def staff(rank: Rank) -> Staff:
    batcher = [child.pid for child in psutil.Process().children()]
    workers = [pid for pid in rank.children() if pid not in batcher]
    return Staff(batcher, workers, _sockets(os.getpid()) & _listening())


def all_training(job: Job, world_size: int) -> list[Staff]:
    return [job.heard(rank, "training") for rank in range(world_size)]


def end_of(job: Job, everybody: list[Staff], within: float = WITHIN) -> list[Outcome]:
    """Waits for all ranks; checks that they left no process, no memory and no open port."""
    outcomes = job.join(within)
    deadline = time.monotonic() + GRACE  # a process may be gone a little before its last thread
    for rank, own in enumerate(everybody):
        assert own.listening, f"rank {rank} was expected to listen"
        while own.listening & _listening():
            assert time.monotonic() < deadline, f"somebody keeps the ports of rank {rank} open"
            time.sleep(0.05)
    return outcomes


def assert_nothing_runs(rank: Rank, case: object, within: float = 5.0) -> None:
    """Called on a rank: no process or thread of evenstep is left there, within seconds."""
    deadline = time.monotonic() + within
    while left := [*rank.children(), *own_threads()]:
        assert time.monotonic() < deadline, f"{case} left {left}"
        time.sleep(0.02)


def own_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if name.startswith("evenstep"))


def listen() -> list[str]:
    """What evenstep warns of from now on."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    return heard


def assert_died(outcome: Outcome, error: str, *says: str) -> None:
    assert outcome.error == error, outcome.traceback + outcome.log
    for words in says:
        assert words in outcome.message


def _sockets(pid: int) -> set[str]:
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            sockets.add(os.readlink(file))
    return {name for name in sockets if name.startswith("socket:")}


def _listening() -> set[str]:
    """Sockets of this machine on which somebody awaits connections."""
    found = set()
    for family in ("tcp", "tcp6"):
        table = Path(f"/proc/net/{family}")
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            state, inode = (line.split()[i] for i in (3, 9))
            if state == "0A":
                found.add(f"socket:[{inode}]")
    return found
