"""What is tried of a job before it starts leaves no trace in the trainer, and in no worker."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from open_handles import KINDS, Handle
from ranks import Rank, run, run_all
from torch.utils.data import Dataset

import evenstep
from evenstep.errors import LoaderDiedError
from evenstep.loader.learning import probe

POLICY = evenstep.Even(max_tokens=1024)
UPDATE = {"policy": POLICY, "update_tokens": 4000}


class Rows:
    """A collate function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
        self.calls += 1
        return evenstep.PadCollator()(samples)


def check(dataset: Handle, loader: evenstep.DataLoader, collate_fn: Rows) -> None:
    """Every sample comes once, with its own bytes; and the trainer's objects are as they were."""
    before = copy.copy(vars(dataset))
    asked, got = [], []
    for batch, _ in loader.steps():
        asked += batch["asked"].tolist()
        got += batch["got"].tolist()
    loader.close()
    assert sorted(asked) == list(range(len(dataset)))
    assert got == asked
    assert vars(dataset) == before
    assert collate_fn.calls == 0


@pytest.mark.parametrize(
    ("kind", "method", "size"),
    [
        *((kind, None, 600) for kind in KINDS),
        ("unmarked", "fork", 600),
        *(
            pytest.param("unmarked", method, 40_000, marks=pytest.mark.soak)
            for method in (None, "fork", "forkserver", "spawn")
        ),
    ],
)
def test_a_handle_is_opened_by_the_workers_alone(
    kind: str, method: str | None, size: int, tmp_path: Path
) -> None:
    dataset, collate_fn = KINDS[kind](tmp_path, size), Rows()
    loader = evenstep.DataLoader(
        dataset,
        **UPDATE,
        collate_fn=collate_fn,
        num_workers=2,
        multiprocessing_context=method,
        shuffle=True,
    )
    check(dataset, loader, collate_fn)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_trainer_draws_is_what_it_would_have_drawn(workers: int, tmp_path: Path) -> None:
    class Drawn(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": [1] * (1 + int(torch.randint(0, 50, ()))), "of": index}

    torch.manual_seed(3)
    state = torch.get_rng_state()
    loader = evenstep.DataLoader(Drawn(), **UPDATE, num_workers=workers)
    loader.learn()
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(i for batch, _ in loader.steps() for i in batch["of"].tolist()) == [*range(400)]


class Slow(Dataset):  # type: ignore[type-arg]
    """Notes who reads what."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.folder / f"{os.getpid()}", "a") as file:
            file.write(f"{index}\n")
        time.sleep(self.seconds)
        return {"input_ids": [1] * (1 + index % 50)}


def learned(folder: Path, seconds: float, workers: int) -> Any:
    loader = evenstep.DataLoader(Slow(folder, seconds), **UPDATE, num_workers=workers)
    loader.learn()
    return loader.learned


class Hanging(Slow):
    def __getitem__(self, index: int) -> dict[str, Any]:
        super().__getitem__(index)
        time.sleep(600)
        raise AssertionError


def test_a_sample_that_hangs_is_an_error_and_no_process_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    loader = evenstep.DataLoader(Hanging(tmp_path), **UPDATE, num_workers=1)
    with pytest.raises(LoaderDiedError, match=r"within 1 seconds; .* raise timeout=0"):
        loader.steps()
    (reader,) = (int(path.name) for path in tmp_path.iterdir())
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(reader).wait(10)  # it ends with its parent


class Deadly(Slow):
    def __getitem__(self, index: int) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


# What ranks agree on

RNG = np.random.default_rng()
"""Of the user's own: evenstep does not seed it."""


class Augmented(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = int(np.clip(RNG.lognormal(3, 1), 2, 400))
        return {"input_ids": torch.ones(length, dtype=torch.int64), "of": index}


def augmented(workers: int) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Augmented(),
        policy=evenstep.Even(512),
        update_tokens=2000,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )


def train_and_resume(rank: Rank, workers: int) -> tuple[Any, list[int]]:
    global RNG
    RNG = np.random.default_rng(rank.rank)
    loader, seen = augmented(workers), []
    for batch, step in (steps := loader.steps()):
        seen += [] if step.filler else batch["of"].tolist()
        if step.ends_update and step.step > 6:
            break
    state, sizes = loader.state_dict(), (loader.sized_policy, loader.accumulate)
    steps.close()
    loader.close()
    again = augmented(workers)
    again.load_state_dict(state)
    again.learn()
    assert (again.sized_policy, again.accumulate) == sizes
    for batch, step in again.steps():
        seen += [] if step.filler else batch["of"].tolist()
    again.close()
    return sizes, seen


def test_lengths_that_never_repeat_train_and_resume_on_two_ranks(tmp_path: Path) -> None:
    ways = [partial(train_and_resume, workers=count) for count in (0, 1)]
    for (first, one), (second, two) in run_all(*ways, world_size=2, folder=tmp_path, within=120):
        assert first == second
        assert sorted(one + two) == list(range(600))


class FirstRankOnly(Slow):
    """Only the first rank's processes may read before the pass begins."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder)
        self.rank = rank

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.rank:
            raise AssertionError("another rank reads")
        return super().__getitem__(index)


def learn(rank: Rank, folder: Path, bad: bool) -> Any:
    dataset: Any = Deadly(folder) if bad else FirstRankOnly(folder, rank.rank)
    loader = evenstep.DataLoader(
        dataset, **UPDATE, collate_fn=Rows(), num_workers=1, multiprocessing_context="fork"
    )
    if rank.rank:
        with pytest.raises(evenstep.ConfigurationError, match=r"loader\.learn\(\) on all ranks"):
            _ = loader.accumulate
    loader.learn()
    return loader.accumulate, loader.sized_policy


def learn_and_fail(rank: Rank, folder: Path) -> tuple[Any, str]:
    learned = learn(rank, folder, False)
    with pytest.raises(evenstep.EvenstepError) as caught:
        learn(rank, folder, True)
    return learned, str(caught.value)


def test_the_first_rank_learns_for_all_and_fails_for_all(tmp_path: Path) -> None:
    (folder := tmp_path / "read").mkdir()
    (first, failed), (second, told) = run(learn_and_fail, 2, folder, folder=tmp_path, within=60)
    assert first == second
    assert re.search(r"before the first step: .* worker", failed)
    assert told == f"rank 0 failed: LoaderDiedError: {failed}"
