"""Every sample once, equal updates, and the gradient and loss of one batch of all samples of an
update, whatever way Trainer takes to its loss."""

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
    documents,
    gathered,
    losses,
    make_trainer,
    of_one_batch,
    together,
)
from torch.nn.functional import cross_entropy

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


def train(rank: Rank | None, folder: Any, cases: list[tuple[str, int]]) -> None:
    if rank is not None:
        as_rank(rank)
    for name, accumulate in cases:
        kind, options, extra = LOSSES[name]
        model = kind()
        trainer = even.install(
            make_trainer(
                folder,
                model=model,
                extra=extra,
                gradient_accumulation_steps=accumulate,
                **options,
            ),
            policy=POLICY,
        )
        trainer.train()
        check(trainer, model, accumulate, SMOOTHING if "smoothed" in name else 0.0)


def check(trainer: Any, model: TellingLlama, accumulate: int, smoothing: float) -> None:
    seen = gathered(model.seen)
    updates = [update for update in together(seen) if update]
    assert sorted(i for update in updates for i in update) == list(range(len(documents())))
    assert len(updates) == len(model.seen.gradients) == trainer.state.global_step
    assert all(batches in (accumulate, 0) for batches in model.seen.batches)
    assert trainer.state.epoch == 1.0
    logged = losses(trainer)
    for update, gradient, loss in zip(updates, model.seen.gradients, logged, strict=True):
        expected_loss, expected = of_one_batch(model, update, smoothing)
        # Before transformers 5, four digits are logged.
        assert loss == pytest.approx(expected_loss, rel=1e-5, abs=5.1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


def test_two_ranks(tmp_path) -> None:
    run(train, 2, tmp_path, [("sum", 3), ("mean", 3)], folder=tmp_path, within=120)


@pytest.mark.integrations
def test_two_ranks_with_every_loss(tmp_path) -> None:
    run(
        train,
        2,
        tmp_path,
        [(name, k) for name in LOSSES for k in (1, 3)],
        folder=tmp_path,
        within=120,
    )
