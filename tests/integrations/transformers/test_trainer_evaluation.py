"""Evaluation on evenstep's batches: the mean over all tokens, and predictions in the order of the
dataset, on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from test_trainer_gradients import LOSSES
from tiny_trainer import POLICY, TellingLlama, documents, make_trainer
from torch.nn.functional import cross_entropy

import evenstep
from evenstep.integrations import transformers as even

COUNT = 23  # on two ranks one of them has nothing left in the last step
POLICIES = {"padded": POLICY, "packed": evenstep.Even(max_tokens=128, packed=True)}


def truth(
    model: Any, smoothing: float = 0.0, count: int = COUNT
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits and labels of all samples as one batch, and the mean loss over their tokens."""
    batch = evenstep.PadCollator()([*documents(count)])
    with torch.no_grad():
        logits = model.eval()(**{**batch, "labels": None}).logits
    labels = batch["labels"]
    kept = labels[:, 1:] != -100
    scores = logits[:, :-1].double()[kept]
    loss = cross_entropy(scores, labels[:, 1:][kept]).item()
    uniform = -scores.log_softmax(-1).mean().item()
    return logits, labels, (1 - smoothing) * loss + smoothing * uniform


def evaluate(rank: Rank, folder: Path, names: list[str]) -> None:
    as_rank(rank)
    for name in names:
        kind, options, extra = LOSSES[name]
        check(folder, kind(), options, extra)


def check(folder: Path, model: Any, options: dict[str, Any], extra: dict[str, Any]) -> None:
    given: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        given.append(prediction)
        return {"rows": len(prediction.predictions)}

    extra = {**extra, "eval_dataset": documents(COUNT), "compute_metrics": metrics}
    trainer = make_trainer(
        folder, model=model, extra=extra, include_for_metrics=["inputs"], **options
    )
    even.install(trainer, policy=POLICY)
    logits, labels, loss = truth(model, trainer.args.label_smoothing_factor)
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(loss, rel=1e-6)
    assert found["eval_rows"] == COUNT
    predicted = trainer.predict(documents(COUNT))
    assert predicted.metrics["test_loss"] == found["eval_loss"]
    known = labels != -100
    tokens = evenstep.PadCollator()([*documents(COUNT)])["input_ids"]
    for each in (*given, predicted):
        assert (torch.as_tensor(each.label_ids) == labels).all()
        values = torch.as_tensor(each.predictions)
        torch.testing.assert_close(values[known], logits[known], rtol=1e-5, atol=1e-6)
    assert (torch.as_tensor(given[0].inputs)[known] == tokens[known]).all()
    assert trainer.compute_metrics is metrics


@pytest.mark.parametrize(
    "names",
    [["sum"], pytest.param([*LOSSES], marks=pytest.mark.integrations)],
    ids=["one loss", "every loss"],
)
def test_two_ranks(tmp_path: Path, names: list[str]) -> None:
    run(evaluate, 2, tmp_path, names, folder=tmp_path, within=120)


def losses(rank: Rank, folder: Path, name: str) -> None:
    """Evaluated while training, which goes on as if nothing had been."""
    as_rank(rank)
    model = TellingLlama()
    model.tell = lambda *_: None  # it knows no packed rows
    extra = {"eval_dataset": documents(COUNT)}
    trainer = make_trainer(folder, model=model, extra=extra, eval_strategy="steps", eval_steps=3)
    even.install(trainer, policy=POLICIES[name]).train()
    *_, loss = truth(trainer.model)
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(logged) > 1
    assert logged == pytest.approx([loss] * len(logged), rel=1e-6)
    assert trainer.state.epoch == 1.0


@pytest.mark.integrations
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_while_training(tmp_path: Path, name: str, ranks: int) -> None:
    run(losses, ranks, tmp_path, name, folder=tmp_path, within=120)
