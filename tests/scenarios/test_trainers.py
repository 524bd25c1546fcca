"""Training with DDP and FSDP, as docs/training.md says, makes equal steps on every rank without a
Join context, and follows one process that trains on all ranks' samples together.

The loops under test are the code of that page itself.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from tiny_model import TinyModel, flat
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import evenstep
from documents import Documents
from page_code import blocks, run_page

K = 3  # steps of an accumulated update, where the name of a recipe says that it accumulates
RECIPES = {  # headings of the page, and which block of code under each
    "ddp": [("DDP", 0), ("The loop", 0)],
    "ddp-accumulating": [("DDP", 0), ("Gradient accumulation", 0)],
    "fsdp-accumulating": [("FSDP", 0), ("Gradient accumulation", 1)],
}
MAX_TOKENS = 64
# Rank 1 has fewer samples than rank 0 must make steps, which are more than 13; or none at all.
FEW = [list(range(70)), list(range(70, 79))]
EMPTY = [list(range(70)), []]


class Masked(Documents):
    """Every seventh document has no supervised token, nor have the shortest, which fill steps."""

    def __init__(self) -> None:
        super().__init__(79, longest=64, prompts=True)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if index % 7 == 0 or self.lengths[index] < 4:
            sample["labels"].fill_(-100)
        return sample


def recipe(name: str) -> str:
    """Code of the page."""
    return "\n".join(blocks("training.md", heading)[at] for heading, at in RECIPES[name])


def update_size(name: str) -> int:
    return K if "accumulating" in name else 1


@dataclass(frozen=True)
class Trained:
    """What one rank saw of an epoch."""

    steps: list[evenstep.StepInfo]
    rows: list[int]
    """Of the batch of each step."""
    gradients: list[torch.Tensor]
    """Of each update, averaged over ranks."""
    parameters: torch.Tensor
    """After the epoch."""
    warned: list[str]


class Watched:
    """A loader that remembers the steps it gave."""

    def __init__(self, loader: evenstep.DataLoader) -> None:
        self.loader = loader
        self.given: list[evenstep.StepInfo] = []
        self.rows: list[int] = []

    def steps(self) -> Iterator[tuple[Any, evenstep.StepInfo]]:
        for batch, step in self.loader.steps():
            self.given.append(step)
            self.rows.append(len(batch["input_ids"]))
            yield batch, step


def train(
    rank: Rank, name: str, shards: list[list[int]], lr: float, options: dict[str, Any]
) -> Trained:
    loader = Watched(
        evenstep.DataLoader(
            Masked(),
            policy=evenstep.TokenBudget(max_tokens=MAX_TOKENS),
            sampler=shards[rank.rank],
            memory=evenstep.Memory(buffer_size=16),
            accumulate=update_size(name),
            **options,
        )
    )
    gradients = []

    def look(optimizer: Optimizer, *_: Any) -> None:
        parameters = optimizer.param_groups[0]["params"]
        gradients.append(flat([parameter.grad for parameter in parameters]))

    names: dict[str, Any] = {
        "torch": torch,
        "model": TinyModel(),
        "loader": loader,
        "lr": lr,
        "device_type": "cpu",
        "world_size": rank.world_size,
    }
    handle = register_optimizer_step_pre_hook(look)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(recipe(name), "training.md", "exec"), names)
    handle.remove()
    warned = [str(warning.message) for warning in caught]
    parameters = flat(list(names["model"].parameters()))
    return Trained(loader.given, loader.rows, gradients, parameters, warned)


def job(
    folder: Path,
    name: str,
    shards: list[list[int]],
    *,
    lr: float = 0.0,
    exhausted: str = "pad",
    num_workers: int = 0,
) -> list[Trained]:
    """What came of an epoch on two ranks. With a learning rate of 0 parameters stay as they are."""
    options = {"faults": evenstep.Faults(exhausted=exhausted), "num_workers": num_workers}
    if num_workers:
        options["multiprocessing_context"] = "fork"
    return run(train, 2, name, shards, lr, options, folder=folder, within=60)


def one_batch(model: TinyModel, indices: list[int]) -> torch.Tensor:
    """Gradient of samples as one padded batch, made without a loader."""
    dataset = Masked()
    model.zero_grad()
    model(**evenstep.PadCollator()([dataset[i] for i in indices])).loss.backward()
    return flat([parameter.grad for parameter in model.parameters() if parameter.grad is not None])


def samples_of(ranks: list[Trained]) -> list[list[int]]:
    """Indices that all ranks trained on together, of each step."""
    return [[i for step in same for i in step.indices] for same in zip(*(r.steps for r in ranks))]


def assert_same(values: list[torch.Tensor], truth: torch.Tensor) -> None:
    for value in values:
        torch.testing.assert_close(value, truth, rtol=1e-8, atol=1e-13)


def check_equal_steps(ranks: list[Trained]) -> None:
    """Every rank makes the same steps, none of them without a sample."""
    steps = ranks[0].steps
    for trained in ranks:
        assert [step.step for step in trained.steps] == list(range(len(steps)))
        assert [step.totals for step in trained.steps] == [step.totals for step in steps]
        for step, rows in zip(trained.steps, trained.rows):
            assert (rows, step.loss_scale) == (1, 0.0) if step.filler else rows == step.samples > 0
            assert step.filler == (step.samples == 0) == (step.indices == ())


def alone(rank: Rank, batches: list[list[int]]) -> list[torch.Tensor]:
    model = TinyModel()
    return [one_batch(model, indices) for indices in batches]


def test_a_filler_changes_no_bit_of_a_gradient(tmp_path: Path) -> None:
    pair = job(tmp_path / "pair", "ddp", EMPTY)
    assert all(step.filler for step in pair[1].steps)
    batches = [list(step.indices) for step in pair[0].steps]
    (truths,) = run(alone, 1, batches, folder=tmp_path / "alone")
    assert sum(bool(truth.any()) for truth in truths) > 10
    for trained in pair:
        for value, truth in zip(trained.gradients, truths, strict=True):
            assert torch.equal(value, truth)


@pytest.mark.parametrize("name", RECIPES)
def test_training_follows_that_of_one_process_update_by_update(tmp_path: Path, name: str) -> None:
    lr = 0.5
    ranks = job(tmp_path, name, FEW, lr=lr, num_workers=1)
    check_equal_steps(ranks)
    steps = samples_of(ranks)
    size = update_size(name)
    assert any(step.filler for step in ranks[1].steps)
    assert size == 1 or len(steps) % size, "the last update must have fewer: take other shards"
    for shard, trained in zip(FEW, ranks):
        assert sorted(i for step in trained.steps for i in step.indices) == shard
    updates = [list(chain(*steps[i : i + size])) for i in range(0, len(steps), size)]
    model = TinyModel()
    before = flat(list(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for samples, *gradients in zip(updates, *(r.gradients for r in ranks), strict=True):
        assert_same(gradients, one_batch(model, samples))
        optimizer.step()
    after = flat(list(model.parameters()))
    assert (after - before).norm() > 0.01 * before.norm()
    assert_same([r.parameters for r in ranks], after)


def test_stopping_makes_equal_steps_without_fillers_and_tells_what_is_left(tmp_path: Path) -> None:
    ranks = job(tmp_path, "fsdp-accumulating", FEW, exhausted="stop")
    check_equal_steps(ranks)
    assert 0 < len(ranks[0].steps) <= len(FEW[1])
    assert not any(step.filler for trained in ranks for step in trained.steps)
    counts = []
    for shard, trained in zip(FEW, ranks):
        seen = [i for step in trained.steps for i in step.indices]
        assert len(set(seen)) == len(seen)
        left = set(shard) - set(seen)
        assert len(left) == len(shard) - len(seen)  # it has seen none of the other rank's
        told = [re.search(r"at least (\d+) samples", text) for text in trained.warned]
        own = [int(match[1]) for match in told if match]
        assert len(own) == bool(left)
        assert all(0 < count <= len(left) for count in own)
        counts += own
    assert counts


def evaluated(rank: Rank) -> tuple[float, dict[int, torch.Tensor]]:
    loader = evenstep.DataLoader(Masked(), policy=evenstep.Even(2 * MAX_TOKENS))
    given = {"torch": torch, "device": "cpu", "model": TinyModel(), "loader": loader}
    names = run_page("training.md", "Evaluation", **given)
    return names["loss"].item(), names["rows"]


def test_an_evaluation_is_of_all_tokens_and_of_each_sample_once(tmp_path: Path) -> None:
    ranks = run(evaluated, 2, folder=tmp_path, within=60)
    batch = evenstep.PadCollator()([*Masked()])
    whole = TinyModel()(**batch)
    for loss, _ in ranks:
        assert loss == pytest.approx(whole.loss.item(), rel=1e-12)
    found = sorted(row for _, rows in ranks for row in rows.items())
    assert [index for index, _ in found] == list(range(len(Masked())))
    for (_, row), logits, mask in zip(found, whole.logits, batch["attention_mask"][:, 1:].bool()):
        torch.testing.assert_close(row[mask[: len(row)]], logits[mask])


def scheduled(rank: Rank) -> tuple[list[float], list[int]]:
    loader, epochs = evenstep.DataLoader(Masked(), policy=evenstep.Even(2 * MAX_TOKENS)), 2
    optimizer = torch.optim.SGD(TinyModel().parameters(), lr=1.0)
    given = {"epochs": epochs, "optimizer": optimizer, "loader": loader}
    schedule = run_page("training.md", "The learning rate", **given)["schedule"]
    rates, samples = [], []
    for _ in range(epochs):
        for _, step in loader.steps():
            rates += schedule.get_last_lr()
            samples.append(step.global_samples)
            optimizer.step()
            schedule.step()
    return [*rates, *schedule.get_last_lr()], samples


def test_the_rate_is_that_of_the_samples_before_an_update(tmp_path: Path) -> None:
    (rates, samples), other = run(scheduled, 2, folder=tmp_path, within=60)
    assert other == (rates, samples)
    left = [sum(samples[at:]) for at in range(len(samples) + 1)]
    assert rates == pytest.approx([each / (2 * len(Masked())) for each in left], abs=1e-12)
