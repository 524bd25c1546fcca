"""Every sample once, equal updates, and the gradient and loss of one batch of all samples of an
update, whatever way Trainer takes to its loss and however many batches an update has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    MeanLlama,
    TellingLlama,
    check_gradients,
    check_updates,
    documents,
    make_trainer,
)
from torch.nn.functional import cross_entropy

import evenstep
from evenstep.cost import FittedCost
from evenstep.integrations import transformers as even

SMOOTHING = 0.1


def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss as Trainer's documentation tells users to write it."""
    logits = outputs["logits"][:, :-1].float()
    loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss / num_items_in_batch


# Name: (model, training arguments, arguments of the trainer).
LOSSES: dict[str, tuple[Callable[[], TellingLlama], dict[str, Any], dict[str, Any]]] = {
    "sum": (TellingLlama, {}, {}),
    "sum-of-rank": (TellingLlama, {"average_tokens_across_devices": False}, {}),
    "mean": (MeanLlama, {}, {}),
    "mean-of-rank": (MeanLlama, {"average_tokens_across_devices": False}, {}),
    "function": (TellingLlama, {}, {"compute_loss_func": summed}),
    "function-of-rank": (
        MeanLlama,
        {"average_tokens_across_devices": False},
        {"compute_loss_func": summed},
    ),
    "smoothed": (TellingLlama, {"label_smoothing_factor": SMOOTHING}, {}),
    "smoothed-mean": (MeanLlama, {"label_smoothing_factor": SMOOTHING}, {}),
}


def train(rank: Rank, folder: Any, cases: list[tuple[str, int]]) -> None:
    as_rank(rank)
    for name, accumulate in cases:
        kind, options, extra = LOSSES[name]
        options = {"extra": extra, "gradient_accumulation_steps": accumulate, **options}
        model = kind()
        trainer = even.install(make_trainer(folder, model=model, **options), policy=POLICY)
        trainer.train()
        updates = check_updates(trainer, model, SMOOTHING if "smoothed" in name else 0.0)
        assert len(updates) == trainer.state.global_step
        assert all(len(sizes) in (accumulate, 0) for sizes in model.seen.sizes)
        assert trainer.state.epoch == 1.0


@pytest.mark.parametrize(
    "cases",
    [
        [("sum", 3), ("mean", 3)],
        pytest.param(
            [(name, k) for name in LOSSES for k in (1, 3)], marks=pytest.mark.integrations
        ),
    ],
    ids=["two losses", "every loss"],
)
def test_two_ranks(tmp_path, cases: list[tuple[str, int]]) -> None:
    run(train, 2, tmp_path, cases, folder=tmp_path, within=120)


# As measured where groups of 18 tokens keep the accelerator busy.
COST = FittedCost(per_group=2.0, per_token=1.0, per_pair=0.0)
SIZED = evenstep.Even(max_tokens=128, cost=COST)
FOUND = evenstep.Even("auto", cost=COST)


@pytest.mark.integrations
@pytest.mark.parametrize("asked", [None, 256, "auto"])
def test_updates_have_several_batches(tmp_path, asked: int | str | None) -> None:
    model = TellingLlama()
    trainer = make_trainer(tmp_path, model=model)
    even.install(trainer, policy=SIZED, **({} if asked is None else {"update_tokens": asked}))
    trainer.train()
    assert trainer.args.gradient_accumulation_steps == 1
    updates = check_updates(trainer, model)
    assert min([len(each) for each in model.seen.sizes if each][:-1]) >= 4
    assert trainer.state.epoch == 1.0
    tokens = [sum(len(documents()[i]["input_ids"]) for i in each) for each in updates]
    mean = sum(tokens[:-1]) / len(tokens[:-1])
    assert mean == pytest.approx(256 if asked == 256 else 115, rel=0.3)


@pytest.mark.integrations
def test_what_fits_is_found_while_training(tmp_path) -> None:
    model = TellingLlama()
    trainer = make_trainer(tmp_path, model=model, max_steps=3)
    even.install(trainer, policy=FOUND).train()
    updates = [update for update in model.seen.samples if update]
    check_gradients(trainer, model, updates)
    assert len(updates) == 3
    seen = model.seen.flat()
    assert len(seen) == len(set(seen))
