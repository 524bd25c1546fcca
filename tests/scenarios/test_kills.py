"""Thousands of ranks killed at random moments while several jobs share the machine: the others must
say who it was within seconds. ``make soak PYTEST_ARGS="-k kills"``; EVENSTEP_KILLS= says how many.

A job has processes, a store, a process group and loaders of its own. Its ranks are forked from a
process that has imported everything and runs no thread, so that a job takes less than half a second
of processor time.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

import evenstep
import evenstep.loader  # here, as ranks are forked: else each of them imports it
from documents import Documents

KILLS = int(os.environ.get("EVENSTEP_KILLS", "600"))
SEED = int(os.environ.get("EVENSTEP_SOAK_SEED", "0"))
LANES = 6  # jobs side by side
KINDS = {"stream": 60, "map": 20, "fork": 20}  # of 100 jobs
START = 60.0  # seconds, on a machine that has much else to do
LIMIT = 10.0  # seconds from a kill to the error on each other rank
CONTEXT = multiprocessing.get_context("fork")
DOCUMENTS = Documents(10_000)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return (DOCUMENTS[number] for number in range(len(DOCUMENTS)))


def train(rank: int, ranks: int, store: Path, kind: str, said: Connection) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    loader = evenstep.DataLoader(
        Stream() if kind == "stream" else DOCUMENTS,
        policy=evenstep.Even(max_tokens=512),
        memory=evenstep.Memory(buffer_size=64),
        num_workers=int(kind == "fork"),
    )
    try:
        for number, _ in enumerate(loader):
            if number == 1:
                said.send("trains")
            time.sleep(0.05)
    except evenstep.errors.PeerError as error:
        said.send((time.monotonic(), str(error)))


def kill_one(draw: random.Random, store: Path) -> list[float]:
    """Seconds until each other rank has its error, in one job."""
    count = draw.choice([2, 2, 3, 4])
    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(count)]
    ranks = [
        CONTEXT.Process(target=train, args=(rank, count, store, kind, pipes[rank][1]))
        for rank in range(count)
    ]
    for rank in ranks:
        rank.start()
    for heard, _ in pipes:
        assert heard.poll(START), f"{kind}: a rank does not begin"
        assert heard.recv() == "trains"
    time.sleep(draw.random() * 0.3)
    victim, begin = draw.randrange(count), time.monotonic()
    ranks[victim].kill()
    seconds = []
    for number, (heard, _) in enumerate(pipes):
        if number == victim:
            continue
        if not heard.poll(max(begin + LIMIT - time.monotonic(), 0)):
            os.kill(ranks[number].pid, signal.SIGUSR1)
            time.sleep(1)
            raise AssertionError(f"{kind}, {count} ranks: {number} did not notice {victim}'s end")
        when, message = heard.recv()
        assert f"rank {victim} (process" in message, message
        seconds.append(when - begin)
    for number, rank in enumerate(ranks):
        rank.join(LIMIT)
        assert rank.exitcode == (-9 if number == victim else 0), f"{kind}: {rank.exitcode}"
    store.unlink(missing_ok=True)
    return seconds


def lane(number: int, folder: Path, said: Connection) -> None:
    draw = random.Random(f"{SEED} {number}")
    missed = 0
    for job in range(-(-KILLS // LANES)):
        try:
            said.send(kill_one(draw, folder / f"{number}.{job}"))
        except AssertionError:
            traceback.print_exc()
            missed += 1
        for rank in multiprocessing.active_children():
            rank.kill()
    sys.exit(missed > 0)


@pytest.mark.soak
@pytest.mark.timeout(10 * KILLS + 300)
def test_no_kill_goes_unnoticed(tmp_path: Path) -> None:
    heard, said = CONTEXT.Pipe(duplex=False)
    lanes = [CONTEXT.Process(target=lane, args=(n, tmp_path, said)) for n in range(LANES)]
    for each in lanes:
        each.start()
    seconds: list[float] = []
    kills = 0
    while any(each.is_alive() for each in lanes) or heard.poll(0):
        if heard.poll(1):
            seconds += heard.recv()
            kills += 1
            if kills % 100 == 0:
                print(said_of(kills, seconds), file=sys.stderr, flush=True)
    assert [each.exitcode for each in lanes] == [0] * LANES
    print(said_of(kills, seconds))


def said_of(kills: int, seconds: list[float]) -> str:
    quantiles = np.quantile(seconds, [0.5, 0.99, 0.999, 1.0]).round(2).tolist()
    return (
        f"{kills} kills noticed; seconds to an error (median, 99 %, 99.9 %, longest): {quantiles}"
    )
