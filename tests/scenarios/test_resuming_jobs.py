"""Jobs that are killed go on exactly as they were, or on another number of ranks."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Job, Rank, run, run_all
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import MismatchError
from evenstep.testing import assert_exact_resume

COUNT = 150
POLICY = evenstep.Even(300)
WINDOW = evenstep.Memory(buffer_size=16)


class RandomLengths(Documents):
    """Cut in a place that no seed of evenstep's decides."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        kept = 1 + secrets.randbelow(len(sample["input_ids"]))
        return {**sample, **{name: sample[name][:kept] for name in ("input_ids", "labels")}}


def make_loader(**options: Any) -> evenstep.DataLoader:
    given = {"dataset": Documents(COUNT, prompts=True), "policy": POLICY, "shuffle": True}
    return evenstep.DataLoader(**{**given, "seed": 4, "memory": WINDOW, **options})


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


# After how many steps the next state is saved, by kind of loader.
KINDS = {"uneven": 27, "empty": 8, "iterable": 12, "updates": 16}


def check_exact(rank: Rank) -> dict[str, int]:
    """By kind of loader: how many of its states were resumed from."""

    def make(kind: str) -> evenstep.DataLoader:
        if kind == "uneven":
            own = list(range(10)) if rank.rank else list(range(10, 100))
            return make_loader(shuffle=False, sampler=own)
        if kind == "empty":
            return make_loader(shuffle=False, sampler=list(range(40)) if rank.rank else [])
        if kind == "updates":
            return make_loader(accumulate=3)
        return evenstep.DataLoader(Uneven(rank.rank), policy=POLICY, memory=WINDOW)

    return {
        kind: assert_exact_resume(lambda kind=kind: make(kind), epochs=2, every=every)
        for kind, every in KINDS.items()
    }


def save_and_load(rank: Rank, checkpoint: str) -> tuple[Any, Any]:
    """Every rank's part, by torch's distributed checkpoints."""
    loader = make_loader()
    whole = train(loader)
    loader.set_epoch(0)
    first = train(loader, 5)
    dcp.save({"loader": loader}, checkpoint_id=checkpoint)
    again = make_loader()
    dcp.load({"loader": again}, checkpoint_id=checkpoint)
    return whole, first + train(again)


@pytest.mark.filterwarnings("ignore:epoch .* ended with at least")
def test_two_ranks_resume_exactly(tmp_path: Path) -> None:
    saved = partial(save_and_load, checkpoint=str(tmp_path / "checkpoint"))
    (first, second), loaded = run_all(check_exact, saved, world_size=2, folder=tmp_path, within=120)
    assert first == second
    assert min(first.values()) > 2, first
    for whole, resumed in loaded:
        assert whole == resumed


QUOTA = 150  # samples, of epochs of 60
STEPS = 5


def until(loader: evenstep.DataLoader, samples: int) -> Any:
    """The loop of docs/training.md."""
    while loader.samples < samples:
        for batch, step in (steps := loader.steps()):
            yield batch, step
            if step.ends_update and loader.samples >= samples:
                break
        steps.close()


def steps_of_job(kind: str) -> tuple[evenstep.DataLoader, Any]:
    """Steps of one epoch, or of a quota of samples, which is met in the third."""
    if kind == "random lengths":
        faults = evenstep.Faults(repeatable=False)
        loader = make_loader(dataset=RandomLengths(COUNT), faults=faults)
        return loader, loader.steps
    if kind == "epoch":
        loader = make_loader(num_workers=1, multiprocessing_context="fork")
        return loader, loader.steps
    faults = evenstep.Faults(exhausted=kind)
    loader = make_loader(dataset=Documents(60, prompts=True), faults=faults)
    return loader, lambda: until(loader, QUOTA)


def train_and_save(rank: Rank, folder: Path, kind: str, resume: bool) -> list[list[Any]]:
    """Saves after every step, until it is killed."""
    logging.getLogger("evenstep").addHandler(logging.StreamHandler())
    loader, steps = steps_of_job(kind)
    seen: list[list[Any]] = []
    if resume:
        # A rank may have been killed before it had saved a step that another one has.
        saved = [
            {int(p.stem) for p in (folder / str(r)).glob("*.json")} for r in range(rank.world_size)
        ]
        last = folder / str(rank.rank) / f"{max(set.intersection(*saved))}.json"
        state = json.loads(last.read_text())
        loader.load_state_dict(state["state"])
        seen = state["seen"]
    own = folder / str(rank.rank)
    own.mkdir(exist_ok=True)
    for batch, step in steps():
        own_samples = [] if step.filler else batch["identity"].tolist()
        seen.append([step.epoch, step.global_samples, own_samples])
        part = own / "part"
        part.write_text(json.dumps({"state": loader.state_dict(), "seen": seen}))
        part.rename(own / f"{len(seen)}.json")
        dist.barrier()
        rank.say(f"step-{len(seen)}")
        if kind == "random lengths" and not resume and len(seen) == STEPS:
            time.sleep(60)  # it is killed before it holds nothing more
    assert kind not in ("pad", "stop") or loader.samples == sum(samples for _, samples, _ in seen)
    return seen


@pytest.mark.parametrize(
    ("kind", "killed"),
    [
        ("epoch", 5),
        *(pytest.param("epoch", step, marks=pytest.mark.soak) for step in (1, 9)),
        ("pad", None),  # in the second epoch
        pytest.param("stop", None, marks=pytest.mark.slow),
    ],
)
def test_a_killed_job_goes_on_with_the_batches_that_would_have_come(
    kind: str, killed: int | None, tmp_path: Path
) -> None:
    undisturbed, first, second = (tmp_path / name for name in ("undisturbed", "first", "second"))
    whole = run(train_and_save, 2, undisturbed, kind, False, folder=undisturbed, within=60)
    epochs = [epoch for epoch, _, _ in whole[0]]
    killed = epochs.index(1) + 2 if killed is None else killed
    kill_job(kind, killed, first)
    assert run(train_and_save, 2, tmp_path, kind, True, folder=second, within=60) == whole
    if kind == "epoch":
        return
    assert set(epochs) == {0, 1, 2}
    trained = sum(samples for _, samples, _ in whole[0])
    assert QUOTA <= trained < QUOTA + whole[0][-1][1]
    for epoch in (0, 1):
        seen = Counter(i for own in whole for e, _, batch in own if e == epoch for i in batch)
        assert max(seen.values()) == 1
        assert kind == "stop" or set(seen) == set(range(60))


def kill_job(kind: str, killed: int, folder: Path, ranks: int = 2) -> None:
    """Kills all ranks after so many steps. Their states stay beside the folder."""
    with Job(train_and_save, ranks, folder.parent, kind, False, folder=folder) as job:
        job.heard(0, f"step-{killed}")
        for rank in range(ranks):
            for pid in everything_of(job.pid(rank)):
                os.kill(pid, signal.SIGKILL)
        job.join(30)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_job_trains_once_on_samples_that_never_have_one_length(
    ranks: int, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    kill_job("random lengths", STEPS, first, ranks)
    with Job(train_and_save, ranks, tmp_path, "random lengths", True, folder=second) as job:
        outcomes = job.join(60)
    seen = [i for rank in outcomes for _, _, batch in rank.value for i in batch]
    assert Counter(seen) == Counter(range(COUNT))
    for outcome in outcomes:
        (told,) = re.findall(r"(\d+) of the (\d+) samples that this rank held", outcome.log)
        assert 0 < int(told[0]) <= int(told[1])


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


def test_every_sample_comes_once_whatever_number_of_ranks_goes_on(tmp_path: Path) -> None:
    worlds = (2, 4, 1, 2)
    seen: list[int] = []
    steps_before: list[int] = []
    checkpoint = ""
    for number, world_size in enumerate(worlds):
        last = number == len(worlds) - 1
        folder = tmp_path / str(number)
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
    made = [run(make_states, n, folder=f, within=60) for n, f in zip((2, 3), folders)]
    for said in run(load_wrongly, 2, *made, folder=folders[2], within=60):
        other, one_of_three, other_steps, only_one = said
        assert "the state has the parts of ranks" in other
        assert re.search(
            r"saved by 3 ranks, and the parts .* are missing.*read_states", one_of_three
        )
        for message in (other_steps, only_one):
            assert re.search(r"ranks differ in (round|step)", message), message
