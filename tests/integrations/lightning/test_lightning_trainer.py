"""Lightning's Trainer: samples, gradients, losses and checkpoints."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.fabric")

from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning_job import Log, Module, trained, trainer_of
from ranks import Rank, run
from script_jobs import torchrun
from tiny_model import TinyModel
from torch.distributed.fsdp import fully_shard
from update_checks import (
    DOCUMENTS,
    Update,
    check_epoch,
    check_killed,
    loader_of,
    one_batch,
    samples_of,
    sized_loader,
    together,
)

import evenstep
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(180)]


def fit(rank: Rank, folder: Path, accumulate: int | None, **options: Any) -> Any:
    """
    Args:
        accumulate: None where the loader chooses.
    """
    module, log = Module(), Log()
    trainer = trainer_of(
        rank,
        folder,
        accumulate_grad_batches=accumulate or 1,
        log_every_n_steps=1,
        logger=log,
        **options,
    )
    loader = sized_loader() if accumulate is None else loader_of(accumulate)
    even.fit(trainer, module, loader)
    return trained(module), log.logged


def check_updates(
    ranks: list[list[Update]], accumulate: int, logged: list[dict[str, float]]
) -> None:
    losses = check_epoch(ranks, accumulate, waits_at_updates=True)
    assert [values["evenstep/loss"] for values in logged] == pytest.approx(losses, rel=1e-5)
    assert all(0 <= values["evenstep/padding"] < 1 for values in logged)


@pytest.mark.parametrize("accumulate", [1, 3, None])
def test_every_update_on_two_ranks_is_that_of_one_batch(
    tmp_path: Path, accumulate: int | None
) -> None:
    outcomes = run(fit, 2, tmp_path, accumulate, folder=tmp_path, within=90)
    ranks = [epochs[0] for epochs, _ in outcomes]
    check_updates(ranks, accumulate or 4, outcomes[0][1])
    assert outcomes[0][1][-1]["evenstep/tokens"] == DOCUMENTS.lengths.sum()


class Sharded(Module):
    """With FSDP2."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)


def sharded(rank: Rank, folder: Path, path: Path | None = None) -> Any:
    # Its default is tensor parallelism.
    trainer = trainer_of(rank, folder, strategy=ModelParallelStrategy())
    with pytest.raises(evenstep.ConfigurationError, match="over 1 ranks, and 2 share the data"):
        even.fit(trainer, Sharded(), loader_of())
    module, log = Sharded(), Log()
    trainer = trainer_of(
        rank,
        folder,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        accumulate_grad_batches=3,
        log_every_n_steps=1,
        logger=log,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)],
    )
    even.fit(trainer, module, loader_of(3), ckpt_path=path)
    return trained(module), log.logged


def test_a_sharded_model_trains_and_resumes_as_well(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    outcomes = run(sharded, 2, tmp_path, folder=folders[0], within=90)
    ranks = [epochs[0] for epochs, _ in outcomes]
    check_updates(ranks, 3, outcomes[0][1])
    path = tmp_path / "step=2.ckpt"
    after = [
        epochs[0] for epochs, _ in run(sharded, 2, tmp_path, path, folder=folders[1], within=90)
    ]
    assert together(after) == together([updates[2:] for updates in ranks])
    assert torch.equal(after[0][-1].gradient, ranks[0][-1].gradient)


def test_the_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "lightning_module.py"
    arguments = ["--folder", str(tmp_path / "saved"), "--max-steps"]
    said = torchrun(2, script, *arguments, "5", log=tmp_path)
    assert re.findall(r"rank \d: (\d+) updates", said) == ["5", "5"]
    path = str(tmp_path / "saved" / "last.ckpt")
    said = torchrun(1, script, *arguments, "10", "--resume", path, log=tmp_path)
    assert re.findall(r"rank \d: (\d+) updates", said) == ["10"]
    (table,) = tmp_path.glob("saved/**/version_0/metrics.csv")
    assert "evenstep/loss" in table.read_text()


class Hanging(ModelCheckpoint):
    """Waits for ever after the first checkpoint."""

    rank: Rank

    def on_train_batch_end(self, trainer: Any, module: Any, *others: Any) -> None:
        super().on_train_batch_end(trainer, module, *others)
        if self.best_model_path:
            self.rank.say("saved")
            self.rank.heard(self.rank.rank, "never", within=60)


def hanging(rank: Rank, saved: Path) -> None:
    callback = Hanging(dirpath=saved, every_n_train_steps=2, filename="{step}")
    callback.rank = rank
    fit(rank, saved, 3, max_epochs=2, callbacks=[callback])


def whole(rank: Rank, folder: Path) -> list[list[Update]]:
    return fit(rank, folder, 3, max_epochs=2)[0]


def resumed(rank: Rank | None, saved: Path) -> list[list[Update]]:
    module = Module()
    path = saved / "step=2.ckpt" if saved.is_dir() else saved
    trainer = trainer_of(rank, saved.parent, accumulate_grad_batches=3, max_epochs=2)
    even.fit(trainer, module, loader_of(3), ckpt_path=path)
    return trained(module)


def test_a_killed_job_goes_on_where_it_saved(tmp_path: Path) -> None:
    check_killed(tmp_path, partial(whole, folder=tmp_path), hanging, resumed)


class Data(LightningDataModule):
    def train_dataloader(self) -> Any:
        return even.loader(loader_of(3))

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(DOCUMENTS)


class Scheduled(Module):
    """Has a schedule, and validates."""

    planned = 0
    validations = 0

    def configure_optimizers(self) -> Any:
        self.planned = even.estimated_stepping_batches(self.trainer, loader_of())
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 2 * self.planned)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validations += 1


def test_a_data_module_schedules_validation_and_limits(tmp_path: Path) -> None:
    module = Scheduled()
    trainer = trainer_of(
        None,
        tmp_path,
        accumulate_grad_batches=3,
        max_epochs=3,
        limit_train_batches=9,
        limit_val_batches=2,
        val_check_interval=4,
        num_sanity_val_steps=0,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
    )
    even.fit(trainer, module, datamodule=Data())
    assert module.planned == trainer.global_step == 9
    assert module.validations == 2 * 2 * 3
    orders = [samples_of(epoch) for epoch in trained(module)]
    assert all(len(set(order)) == len(order) for order in orders)
    assert orders[0] != orders[1] != orders[2]


class Manual(Module):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        self.manual_backward(loss)
        (callback,) = (c for c in self.trainer.callbacks if isinstance(c, even.StepCallback))
        if callback.step.ends_update:
            optimizer.step()
            optimizer.zero_grad()


def test_manual_optimization_scales_too(tmp_path: Path) -> None:
    module = Manual()
    even.fit(trainer_of(None, tmp_path), module, loader_of(3))
    (updates,) = trained(module)
    model = TinyModel()
    gradient, _ = one_batch(model, updates[0].samples)
    assert (updates[0].gradient - gradient).norm() < 1e-5 * gradient.norm()
    assert [update.steps for update in updates][:-1] == [3] * (len(updates) - 1)
