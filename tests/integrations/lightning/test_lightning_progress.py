"""Learning rates that end with the data, and validation on evenstep's batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning.fabric")

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_job import Module, trained, trainer_of
from ranks import Rank, run
from torch.optim.lr_scheduler import LambdaLR
from update_checks import DOCUMENTS, loader_of

import evenstep
from documents import Documents
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(180)]

PEAK, EPOCHS, STEPS = 0.1, 2, 1000
VALIDATED = Documents(37, longest=64, prompts=True, seed=5)


class Followed(Module):
    """Its schedule was made for another number of steps than come."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.validated: list[int] = []

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = LambdaLR(optimizer, lambda step: 1 - step / STEPS)
        evenstep.follow_progress(schedule, lambda: even.progress(self.trainer), steps=STEPS)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        self.rates.append(optimizer.param_groups[0]["lr"])

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        (callback,) = (c for c in self.trainer.callbacks if isinstance(c, even.StepCallback))
        if not callback.step.filler:
            self.validated += callback.step.indices
        return self.model(**batch).loss


def fit(rank: Rank, folder: Path, path: Path | None) -> Any:
    module = Followed()
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = trainer_of(rank, folder, max_epochs=EPOCHS, callbacks=[saving])
    # On two ranks one of them has nothing left in the last step.
    validated = evenstep.DataLoader(VALIDATED, policy=evenstep.Even(128))
    even.fit(trainer, module, loader_of(), validated, ckpt_path=path)
    loss = trainer.callback_metrics["evenstep/val_loss"].item()
    whole = module.model(**evenstep.PadCollator()([*VALIDATED])).loss.item()
    assert loss == pytest.approx(whole, rel=1e-6)
    samples = [len(update.samples) for epoch in trained(module) for update in epoch]
    after = trainer.optimizers[0].param_groups[0]["lr"]
    return module.rates, after, samples, module.validated[-len(VALIDATED) :]


def check(ranks: list[Any], before: int) -> list[int]:
    """The samples of each update."""
    samples = [sum(each) for each in zip(*(samples for _, _, samples, _ in ranks))]
    total = EPOCHS * len(DOCUMENTS)
    assert before + sum(samples) == total
    shares = [each / total for each in itertools.accumulate(samples, initial=before)]
    for rates, after, *_ in ranks:
        assert [*rates, after] == pytest.approx([PEAK * (1 - share) for share in shares], abs=1e-12)
    return samples


def test_rates_and_validation_on_two_ranks_and_after_a_resume_on_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("two", "one")]
    for folder in folders:
        folder.mkdir()
    ranks = run(fit, 2, tmp_path, None, folder=folders[0], within=90)
    samples = check(ranks, 0)
    seen = {i for *_, validated in ranks for i in validated}
    assert seen == set(range(len(VALIDATED)))
    alone = run(fit, 1, folders[1], tmp_path / "step=3.ckpt", folder=folders[1], within=90)
    check(alone, sum(samples[:3]))
