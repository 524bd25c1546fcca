"""Hours of bad luck in minutes: processes killed at random, jobs resumed on other numbers of ranks,
and an audit of every sample of every epoch. ``make soak`` runs it.

What counts as trained is what a complete checkpoint says: work after it is lost with the job, as in
a real one, and must come again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from ranks import Job, Rank

import evenstep
from documents import Documents

SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", "1200"))
SEED = int(os.environ.get("EVENSTEP_SOAK_SEED", "0"))
POLICY = [evenstep.Even(600), evenstep.TokenBudget(600)][SEED % 2]
COUNT = 960  # a multiple of every number of ranks, so that no epoch repeats a sample
WORLDS = (1, 2, 4)


def make(options: dict[str, Any]) -> evenstep.DataLoader:
    given = {"dataset": Documents(COUNT), "policy": POLICY, **options}
    return evenstep.DataLoader(shuffle=True, seed=1, **given)


def train(rank: Rank, root: Path, before: int, exactly: bool, options: dict[str, Any]) -> None:
    """Goes on from checkpoint `before`, until it is killed."""
    loader = make(options)
    if before >= 0:
        states = [part["state"] for part in parts_of(root / str(before))]
        loader.load_state_dict(states[rank.rank] if exactly else evenstep.merge_states(states))
    number, steps = before, 0
    seen: list[tuple[int, list[int]]] = []
    while True:
        for batch, step in loader.steps():
            seen.append((step.epoch, [] if step.filler else batch["identity"].tolist()))
            time.sleep(0.005)
            steps += 1
            if steps == 1:
                rank.say("trains")
            if steps % 5 == 0:
                number = save(rank, root, number + 1, loader, seen)
        number = save(rank, root, number + 1, loader, seen)


def save(rank: Rank, root: Path, number: int, loader: evenstep.DataLoader, seen: list[Any]) -> int:
    folder = root / str(number)
    folder.mkdir(exist_ok=True)
    state = {"state": loader.state_dict(), "seen": seen}
    (folder / f"{rank.rank}.json").write_text(json.dumps(state))
    dist.barrier()
    if rank.rank == 0:
        (folder / "complete").touch()
    seen.clear()
    return number


def parts_of(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


def last_complete(root: Path) -> int:
    """Number of the last complete checkpoint; those after it are removed."""
    numbers = [int(p.parent.name) for p in root.glob("*/complete")]
    last = max(numbers, default=-1)
    for path in root.iterdir():
        if int(path.name) > last:
            shutil.rmtree(path)
    return last


def kill_something(job: Job, world_size: int, draw: random.Random) -> str:
    rank = draw.randrange(world_size)
    process = psutil.Process(job.pid(rank))
    children = process.children(recursive=True)
    victim = draw.choice(children) if children and draw.random() < 0.7 else process
    what = "rank" if victim.pid == process.pid else "batcher or worker"
    if draw.random() < 0.1:
        what = "every process"
        for other in range(world_size):
            root = psutil.Process(job.pid(other))
            for one in [*root.children(recursive=True), root]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        return what
    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
        victim.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    return what


def takes_effect(job: Job, world_size: int, root: Path) -> bool:
    """False if the job goes on: what was killed was about to end, with its epoch."""

    def saved() -> int:
        return sum(1 for _ in root.glob("*/complete"))

    before, deadline = saved(), time.monotonic() + 20
    while time.monotonic() < deadline:
        if not all(psutil.pid_exists(job.pid(rank)) for rank in range(world_size)) or any(
            psutil.Process(job.pid(rank)).status() == psutil.STATUS_ZOMBIE
            for rank in range(world_size)
        ):
            return True
        if saved() >= before + 3:
            return False
        time.sleep(0.05)
    return True  # neither: `join` says where it hangs


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_no_sample_is_lost_or_repeated_whatever_is_killed(tmp_path: Path) -> None:
    print(json.dumps(kill_and_resume(tmp_path), indent=1), file=sys.stderr)


def kill_and_resume(tmp_path: Path) -> dict[str, Any]:
    end = time.monotonic() + SECONDS
    draw = random.Random(SEED)
    root = tmp_path / "checkpoints"
    root.mkdir()
    killed: Counter[str] = Counter()
    resumed: Counter[str] = Counter()
    slowest, world_size, options = 0.0, 0, {}
    while time.monotonic() < end:
        before = last_complete(root)
        same = world_size and draw.random() < 0.4
        saved_world = len(parts_of(root / str(before))) if before >= 0 else 0
        if not (same and saved_world == world_size):
            world_size = draw.choice(WORLDS)
            options = {
                "num_workers": draw.choice([0, 1, 1, 2]),
                "memory": evenstep.Memory(buffer_size=draw.choice([16, 48, 200])),
                "multiprocessing_context": None,
            }
        exactly = saved_world == world_size
        resumed[f"{saved_world} -> {world_size} ranks"] += 1
        folder = tmp_path / "job"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with Job(train, world_size, root, before, exactly, options, folder=folder) as job:
            # Before that, a rank may wait for one that died for as long as connecting may take.
            for rank in range(world_size):
                job.heard(rank, "trains", within=60)
            time.sleep(draw.uniform(0, 6.5))
            begin = time.monotonic()
            killed[kill_something(job, world_size, draw)] += 1
            while not takes_effect(job, world_size, root):
                killed["process that had nothing more to do"] += 1
                begin = time.monotonic()
                kill_something(job, world_size, draw)
            outcomes = job.join(20)
            slowest = max(slowest, time.monotonic() - begin)
        for outcome in outcomes:
            expected = ("", "PeerError", "LoaderDiedError", "RuntimeError", "DistBackendError")
            assert outcome.error in expected, outcome.traceback
    report = audit(root)
    report.update(killed=dict(killed), resumed=dict(resumed), slowest_end_s=round(slowest, 1))
    return report


def audit(root: Path) -> dict[str, Any]:
    trained: dict[int, Counter[int]] = {}
    epoch, steps = 0, 0
    last = last_complete(root)
    for number in range(last + 1):
        parts = parts_of(root / str(number))
        assert len({len(part["seen"]) for part in parts}) == 1  # equal steps
        steps += len(parts[0]["seen"])
        for part in parts:
            for of_epoch, identities in part["seen"]:
                trained.setdefault(of_epoch, Counter()).update(identities)
            epoch = part["state"]["epoch"]["number"]
    assert epoch > 0, "no epoch was finished; give the soak more time"
    once = Counter(range(COUNT))
    for finished in range(epoch):
        extra, lost = trained[finished] - once, once - trained[finished]
        assert not extra, f"epoch {finished} repeats {sorted(extra)}"
        assert not lost, f"epoch {finished} lacks {sorted(lost)}"
    return {"epochs": epoch, "samples": epoch * COUNT, "steps": steps, "checkpoints": last + 1}
