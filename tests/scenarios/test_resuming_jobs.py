"""Jobs that are killed go on exactly as they were, or on another number of ranks."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Job, Rank, run
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import MismatchError
from evenstep.testing import assert_exact_resume

COUNT = 150
POLICY = evenstep.Even(300)
WINDOW = evenstep.Memory(buffer_size=16)


def make_loader(**options: Any) -> evenstep.DataLoader:
    given = {"policy": POLICY, "shuffle": True, "seed": 4, "memory": WINDOW}
    return evenstep.DataLoader(Documents(COUNT, prompts=True), **{**given, **options})


def train(loader: evenstep.DataLoader, steps: int | None = None) -> list[list[int]]:
    """Makes so many steps, or the rest of the epoch, and gives what was in them."""
    seen = []
    iterator = loader.steps()
    while steps is None or len(seen) < steps:
        try:
            batch, step = next(iterator)
        except StopIteration:
            break
        seen.append([] if step.filler else batch["identity"].tolist())
    return seen


# Exactly


class Uneven(IterableDataset):  # type: ignore[type-arg]
    """A shard of 60 documents on rank 0, and nothing on rank 1."""

    def __init__(self, rank: int) -> None:
        self.documents, self.position = Documents(0 if rank else 60), 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.documents):
            self.position += 1
            yield self.documents[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def check_exact(rank: Rank, kind: str) -> int:
    def make() -> evenstep.DataLoader:
        if kind == "uneven":
            own = list(range(10)) if rank.rank else list(range(10, 100))
            return make_loader(shuffle=False, sampler=own)
        if kind == "empty":
            return make_loader(shuffle=False, sampler=list(range(40)) if rank.rank else [])
        if kind == "workers":
            return make_loader(num_workers=1)
        if kind == "stop":
            return make_loader(faults=evenstep.Faults(exhausted="stop"))
        if kind == "updates":
            return make_loader(accumulate=3)
        if kind == "iterable":
            return evenstep.DataLoader(Uneven(rank.rank), policy=POLICY, memory=WINDOW)
        raise AssertionError(kind)

    return assert_exact_resume(make, epochs=2, every=12 if kind == "workers" else 4)


@pytest.mark.filterwarnings("ignore:epoch .* ended with at least")
@pytest.mark.parametrize("kind", ["uneven", "empty", "iterable", "workers", "stop", "updates"])
def test_two_ranks_resume_exactly(kind: str, tmp_path: Path) -> None:
    counts = run(check_exact, 2, kind, folder=tmp_path, within=90)
    assert counts[0] == counts[1] > 3


def train_and_save(rank: Rank, folder: Path, resume: bool) -> list[list[int]]:
    """Saves after every step, until it is killed."""
    loader = make_loader(num_workers=1)
    seen: list[list[int]] = []
    if resume:
        # A rank may have been killed before it had saved a step that another one has.
        saved = [{int(p.stem) for p in (folder / str(r)).glob("*.json")} for r in range(2)]
        last = folder / str(rank.rank) / f"{max(set.intersection(*saved))}.json"
        state = json.loads(last.read_text())
        loader.load_state_dict(state["state"])
        seen = state["seen"]
    own = folder / str(rank.rank)
    own.mkdir(exist_ok=True)
    for batch, _ in loader.steps():
        seen.append(batch["identity"].tolist())
        part = own / "part"
        part.write_text(json.dumps({"state": loader.state_dict(), "seen": seen}))
        part.rename(own / f"{len(seen)}.json")
        dist.barrier()
        rank.say(f"step-{len(seen)}")
    return seen


@pytest.mark.parametrize(
    "killed", [5, *(pytest.param(step, marks=pytest.mark.soak) for step in (1, 9))]
)
def test_a_killed_job_goes_on_with_the_batches_that_would_have_come(
    killed: int, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole = run(train_and_save, 2, tmp_path / "whole", False, folder=tmp_path / "whole", within=60)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Job(train_and_save, 2, tmp_path, False, folder=first) as job:
        job.heard(0, f"step-{killed}")
        for rank in range(2):
            for pid in everything_of(job.pid(rank)):
                os.kill(pid, signal.SIGKILL)
        job.join(30)
    assert run(train_and_save, 2, tmp_path, True, folder=second, within=60) == whole


def everything_of(pid: int) -> list[int]:
    process = psutil.Process(pid)
    return [child.pid for child in process.children(recursive=True)] + [pid]


# On another number of ranks


def train_some(rank: Rank, checkpoint: str, then: str, steps: int | None) -> Any:
    """Goes on from one checkpoint, and writes the next."""
    loader = make_loader()
    if checkpoint:
        loader.load_state_dict(evenstep.read_states(checkpoint))
    seen = train(loader, steps)
    if then:
        dcp.save({"loader": loader}, checkpoint_id=then)
    state = loader.state_dict()
    loader.close()
    return seen, state, loader.epoch


@pytest.mark.parametrize("worlds", [(2, 4, 1, 2), (3, 3, 2)])
def test_every_sample_comes_once_whatever_number_of_ranks_goes_on(
    worlds: tuple[int, ...], tmp_path: Path
) -> None:
    seen: list[int] = []
    steps_before: list[int] = []
    checkpoint = ""
    for number, world_size in enumerate(worlds):
        last = number == len(worlds) - 1
        folder = tmp_path / str(number)
        folder.mkdir()
        then = "" if last else str(folder / "checkpoint")
        results = run(
            train_some, world_size, checkpoint, then, None if last else 2, folder=folder, within=60
        )
        counts = {len(own) for own, _, _ in results}
        assert len(counts) == 1
        steps_before.append(counts.pop())
        seen += [identity for own, _, _ in results for batch in own for identity in batch]
        checkpoint = then
        assert {state["epoch"]["number"] for _, state, _ in results} == {int(last)}
    # Equal shares of a whole epoch repeat a few samples at its end: here 150 is not divided by 4.
    counted = Counter(seen)
    assert set(counted) == set(range(COUNT))
    assert sum(counted.values()) == COUNT
    assert all(steps_before)


def test_an_elastic_resume_is_deterministic_and_merging_needs_no_ranks(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    states = [state for _, state, _ in run(train_some, 3, "", "", 2, folder=folders[0], within=60)]
    merged = evenstep.merge_states(states)
    assert merged == evenstep.merge_states(states[::-1])
    runs = [run(train_merged, 2, merged, folder=folder, within=60) for folder in folders[1:]]
    assert runs[0] == runs[1]
    together = evenstep.merge_states([merged])
    assert together == merged


def train_merged(rank: Rank, state: dict[str, Any]) -> list[list[int]]:
    loader = make_loader()
    loader.load_state_dict(state)
    return train(loader)


def save_and_load(rank: Rank, checkpoint: str) -> tuple[Any, Any]:
    loader = make_loader()
    whole = train(loader)
    loader.set_epoch(0)
    first = train(loader, 5)
    dcp.save({"loader": loader}, checkpoint_id=checkpoint)
    again = make_loader()
    dcp.load({"loader": again}, checkpoint_id=checkpoint)
    return whole, first + train(again)


def test_torch_distributed_checkpoint_keeps_every_ranks_part(tmp_path: Path) -> None:
    for whole, resumed in run(save_and_load, 2, str(tmp_path / "checkpoint"), folder=tmp_path):
        assert whole == resumed


# What is refused


def make_states(rank: Rank) -> list[dict[str, Any]]:
    """The states after the fourth and the fifth step."""
    loader = make_loader()
    iterator = loader.steps()
    states = []
    for _ in range(5):
        next(iterator)
        states.append(loader.state_dict())
    loader.close()
    return states[3:]


def load_wrongly(rank: Rank, pair: list[Any], trio: list[Any]) -> list[str]:
    """What a loader says of states that do not fit together, when they are loaded or used."""
    own = rank.rank
    said = []
    for state in (pair[1 - own][0], trio[own][0], pair[own][own], pair[1][0] if own else None):
        loader = make_loader()
        try:
            if state is not None:
                loader.load_state_dict(state)
            next(loader.steps())
        except MismatchError as error:
            said.append(str(error))
        loader.close()
    return said


def test_states_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("pair", "trio", "loaded")]
    for folder in folders:
        folder.mkdir()
    made = [run(make_states, n, folder=f, within=60) for n, f in zip((2, 3), folders)]
    for said in run(load_wrongly, 2, *made, folder=folders[2], within=60):
        other, one_of_three, other_steps, only_one = said
        assert "the state has the parts of ranks" in other
        assert re.search(
            r"saved by 3 ranks, and the parts .* are missing.*read_states", one_of_three
        )
        for message in (other_steps, only_one):
            assert re.search(r"ranks differ in (round|step)", message), message
