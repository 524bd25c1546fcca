"""An epoch on more ranks than this machine has cores for: one is killed, and the job resumes on
fewer. EVENSTEP_RANKS= says how many."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import Job, Rank

import evenstep
from documents import Documents

RANKS = int(os.environ.get("EVENSTEP_RANKS", "128"))
EACH = 24  # samples of a rank
CONNECTING = 300.0  # seconds in which so many processes form a group on a few cores


def train(rank: Rank, root: Path, states: list[Any], goes_on: bool) -> tuple[int, list[int]]:
    """Steps, and samples trained on since `states`. Unless it goes on, it saves after two steps
    and waits for the death of another rank."""
    loader = evenstep.DataLoader(
        Documents(RANKS * EACH),
        policy=evenstep.Even(600),
        memory=evenstep.Memory(buffer_size=4),
        shuffle=True,
        seed=1,
    )
    if states:
        loader.load_state_dict(evenstep.merge_states(states))
    seen: list[int] = []
    number = 0
    for number, (_, step) in enumerate(loader.steps(), 1):
        seen += step.indices
        if number == 2 and not goes_on:
            (root / f"{rank.rank}.json").write_text(json.dumps([loader.state_dict(), seen]))
            dist.barrier()
            rank.say("saved")
            while not (root / "killed").exists():
                time.sleep(0.1)
    return number, seen


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_ranks_train_each_sample_once(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    root.mkdir()
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    begin = time.monotonic()
    with Job(train, RANKS, root, [], False, folder=folders[0]) as job:
        for rank in range(RANKS):
            job.heard(rank, "saved", within=CONNECTING)
        print(f"{RANKS} ranks: two steps after {time.monotonic() - begin:.0f} s")
        job.signal(RANKS // 3, signal.SIGKILL)
        (root / "killed").touch()
        begin = time.monotonic()
        outcomes = job.join(60)
        print(f"all ended {time.monotonic() - begin:.1f} s after a kill")
    del outcomes[RANKS // 3]
    for outcome in outcomes:
        assert outcome.error == "PeerError", outcome.traceback
        assert f"rank {RANKS // 3} (process" in outcome.message
    parts = [json.loads((root / f"{rank}.json").read_text()) for rank in range(RANKS)]
    fewer = RANKS * 3 // 4
    begin = time.monotonic()
    with Job(train, fewer, root, [state for state, _ in parts], True, folder=folders[1]) as job:
        resumed = job.join(CONNECTING)
    print(f"{fewer} ranks: the rest of the epoch took {time.monotonic() - begin:.0f} s")
    assert len({steps for steps, _ in (outcome.value for outcome in resumed)}) == 1
    trained = [seen for _, seen in parts] + [outcome.value[1] for outcome in resumed]
    assert Counter(index for seen in trained for index in seen) == Counter(range(RANKS * EACH))
