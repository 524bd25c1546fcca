"""The learning rate of an update is that of the share of samples trained on before it: to the end,
over resumes, and alike on any number of ranks."""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import POLICY, documents, make_trainer
from transformers import TrainerCallback

from evenstep.integrations import transformers as even

N = len(documents())
PEAK = 1e-3
CURVES: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
}


class Rates(TrainerCallback):
    """Notes the rate of each update, and the one after the last."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.after = math.nan

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.rates.append(others["optimizer"].param_groups[0]["lr"])

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        (self.after,) = set(others["lr_scheduler"].get_last_lr())


def train(rank: Rank, folder: Path, curve: str, epochs: int) -> Any:
    as_rank(rank)
    rates = Rates()
    trainer = make_trainer(
        folder / curve / str(epochs),
        num_train_epochs=epochs,
        lr_scheduler_type=curve,
        learning_rate=PEAK,
        save_strategy="steps",
        save_steps=4,
        extra={"callbacks": [rates]},
    )
    resumes = any((folder / curve / str(epochs)).glob("checkpoint-*"))
    even.install(trainer, policy=POLICY).train(resume_from_checkpoint=resumes)
    samples = [len(update) for update in trainer.model.seen.samples[:-1]]
    return rates.rates, rates.after, samples


CASES = [("linear", 1), ("cosine", 2)]


def train_all(rank: Rank, folder: Path) -> Any:
    return [train(rank, folder, curve, epochs) for curve, epochs in CASES]


def check(ranks: list[Any], before: list[int]) -> list[list[int]]:
    """
    Args:
        before: of each case, samples before the resume.

    Returns:
        The samples of each update.
    """
    updates = []
    for (curve, epochs), first, *outcomes in zip(CASES, before, *ranks):
        samples = [sum(each) for each in zip(*(samples for *_, samples in outcomes))]
        assert first + sum(samples) == epochs * N
        shares = [each / (epochs * N) for each in itertools.accumulate(samples, initial=first)]
        expected = [PEAK * CURVES[curve](share) for share in shares]
        for rates, after, _ in outcomes:
            assert rates == pytest.approx(expected[:-1], rel=1e-9)
            assert after == 0.0
        updates.append(samples)
    return updates


@pytest.mark.integrations
def test_rates_end_with_the_data_after_a_resume_too(tmp_path: Path) -> None:
    """On two ranks; then from a checkpoint in the middle, on two ranks and on one."""
    folder = tmp_path / "saved"
    job = tmp_path / "job"
    job.mkdir()
    whole = run(train_all, 2, folder, folder=job, within=150)
    updates = check(whole, [0] * len(CASES))
    stopped = [sum(samples[:4]) for samples in updates]
    for curve, epochs in CASES:
        for path in (folder / curve / str(epochs)).glob("checkpoint-*"):
            if path.name != "checkpoint-4":
                shutil.rmtree(path)
    for count in (2, 1):
        copied, job = tmp_path / f"resumed {count}", tmp_path / f"job {count}"
        shutil.copytree(folder, copied)
        job.mkdir()
        check(run(train_all, count, copied, folder=job, within=150), stopped)
