"""Jobs with a quota of samples: killed and resumed, on as many ranks or others, they end alike."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from ranks import Job, Rank, run

import evenstep
from documents import Documents

COUNT, QUOTA = 60, 150


def make_loader(exhausted: str) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(COUNT, prompts=True),
        policy=evenstep.Even(300),
        shuffle=True,
        seed=4,
        memory=evenstep.Memory(buffer_size=16),
        faults=evenstep.Faults(exhausted=exhausted),
    )


def train(rank: Rank, folder: Path, exhausted: str, resume: bool) -> list[Any]:
    """Saves after every step, until it is killed or has met the quota."""
    loader, own, seen = make_loader(exhausted), folder / str(rank.rank), []
    if resume:
        # A rank may have been killed before it had saved a step that another one has.
        saved = [{int(p.stem) for p in (folder / str(r)).glob("*.json")} for r in range(2)]
        last = json.loads((own / f"{max(set.intersection(*saved))}.json").read_text())
        loader.load_state_dict(last["state"])
        seen = last["seen"]
    own.mkdir(exist_ok=True)
    for batch, step in loader.epochs(samples=QUOTA):
        seen.append([step.epoch, step.global_samples, batch["identity"].tolist()])
        part = own / "part"
        part.write_text(json.dumps({"state": loader.state_dict(), "seen": seen}))
        part.rename(own / f"{len(seen)}.json")
        dist.barrier()
        rank.say(f"step-{len(seen)}")
    assert loader.samples == sum(samples for _, samples, _ in seen)
    return seen


@pytest.mark.parametrize("exhausted", ["pad", "stop"])
def test_a_job_killed_in_its_second_epoch_meets_its_quota_with_the_same_steps(
    exhausted: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("whole", "first", "second")]
    for folder in folders:
        folder.mkdir()
    whole = run(train, 2, folders[0], exhausted, False, folder=folders[0], within=60)
    epochs = [epoch for epoch, _, _ in whole[0]]
    assert set(epochs) == {0, 1, 2}
    with Job(train, 2, tmp_path, exhausted, False, folder=folders[1]) as job:
        job.heard(0, f"step-{epochs.index(1) + 2}")
        for rank in range(2):
            process = psutil.Process(job.pid(rank))
            for one in [*process.children(recursive=True), process]:
                os.kill(one.pid, signal.SIGKILL)
        job.join(30)
    assert run(train, 2, tmp_path, exhausted, True, folder=folders[2], within=60) == whole
    emitted = sum(samples for _, samples, _ in whole[0])
    assert QUOTA <= emitted < QUOTA + whole[0][-1][1]
    for epoch in (0, 1):
        seen = Counter(i for own in whole for e, _, batch in own if e == epoch for i in batch)
        assert max(seen.values()) == 1
        assert exhausted == "stop" or set(seen) == set(range(COUNT))


def train_merged(rank: Rank, state: dict[str, Any] | None, quota: int) -> Any:
    loader = make_loader("pad")
    if state is not None:
        loader.load_state_dict(state)
    before = loader.samples
    seen = []
    for batch, step in loader.epochs(samples=quota):
        seen.append([step.epoch, [] if step.filler else batch["identity"].tolist()])
        time.sleep(0.1 * rank.rank)  # the first rank leaves its last pass long before the others
    return before, seen, loader.state_dict(), loader.samples


def test_a_quota_goes_on_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    state, parts, after = None, [], 0
    for number, (world_size, quota) in enumerate([(2, 40), (3, 100), (1, QUOTA)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        results = run(train_merged, world_size, state, quota, folder=folder, within=60)
        assert {before for before, _, _, _ in results} == {after}
        (after,) = {samples for _, _, _, samples in results}
        assert after >= quota
        parts += [entry for _, seen, _, _ in results for entry in seen]
        state = evenstep.merge_states([state for _, _, state, _ in results])
    assert sum(len(batch) for _, batch in parts) == after
    for epoch in (0, 1):
        assert Counter(i for e, batch in parts if e == epoch for i in batch) == Counter(
            range(COUNT)
        )
