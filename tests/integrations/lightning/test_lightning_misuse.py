"""Lightning: what would train wrongly is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.fabric")

from lightning_job import Module, trainer_of
from update_checks import DOCUMENTS, loader_of

import evenstep
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(60)]


def refused(pattern: str) -> Any:
    return pytest.raises(evenstep.ConfigurationError, match=pattern)


def test_a_loader_that_is_given_bare(tmp_path: Path) -> None:
    with refused(r"write: .* as even; even\.fit\(trainer, module, loader\)"):
        trainer_of(None, tmp_path).fit(Module(), loader_of())


def test_a_trainer_without_the_callback(tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path)

    class Silent(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(**batch).loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            pass

    with refused(r"or Trainer\(callbacks=\[even\.StepCallback\(\)\]\)"):
        trainer.fit(Silent(), even.loader(loader_of()))
    assert trainer.global_step <= 1


def test_other_updates_than_the_trainer_makes(tmp_path: Path) -> None:
    with refused("give both the same"):
        even.fit(trainer_of(None, tmp_path, accumulate_grad_batches=3), Module(), loader_of(2))


def test_an_epoch_that_ends_in_the_middle_of_an_update(tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path, accumulate_grad_batches=3, limit_train_batches=4)
    with refused("limit_train_batches as a multiple"):
        even.fit(trainer, Module(), loader_of(3))
    even.fit(
        trainer_of(None, tmp_path, accumulate_grad_batches=3, fast_dev_run=True),
        Module(),
        loader_of(3),
    )


def test_a_loss_that_lightning_does_not_see(tmp_path: Path) -> None:
    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx).backward()
            self.optimizers().step()

    with refused(r"call self\.manual_backward\(loss\)"):
        even.fit(trainer_of(None, tmp_path), Manual(), loader_of())


def test_evaluation(tmp_path: Path) -> None:
    class Validated(Module):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    with refused("for evaluation, whose fillers"):
        even.fit(trainer_of(None, tmp_path), Validated(), loader_of(), even.loader(loader_of()))
    with refused("for evaluation, whose fillers"):
        trainer_of(None, tmp_path, callbacks=[even.StepCallback()]).validate(
            Validated(), even.loader(loader_of())
        )


def test_loaders_that_one_loss_cannot_serve(tmp_path: Path) -> None:
    with refused("2 evenstep loaders feed one training_step"):
        even.fit(trainer_of(None, tmp_path), Module(), [even.loader(loader_of()) for _ in range(2)])
    with refused("list, which cannot carry its step"):
        even.fit(trainer_of(None, tmp_path), Module(), loader_of(collate_fn=list))
    policy = evenstep.WorkloadPacking(128, micro_batches=3, thresholds=(40,))
    with refused("makes 3 micro-batches of a step"):
        even.loader(evenstep.DataLoader(DOCUMENTS, policy=policy))
    with refused("no evenstep.DataLoader"):
        even.loader(torch.utils.data.DataLoader(DOCUMENTS))


def test_a_checkpoint_in_the_middle_of_an_update(tmp_path: Path) -> None:
    class Saving(Module):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.trainer.save_checkpoint(tmp_path / "part.ckpt")

    with pytest.warns(UserWarning, match="after step 1, in the middle of an update"):
        even.fit(trainer_of(None, tmp_path, accumulate_grad_batches=3), Saving(), loader_of(3))


def test_a_checkpoint_without_the_loader(tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path, max_steps=2)
    even.fit(
        trainer, Module(), torch.utils.data.DataLoader(DOCUMENTS, collate_fn=evenstep.PadCollator())
    )
    trainer.save_checkpoint(tmp_path / "bare.ckpt")
    with pytest.raises(evenstep.MismatchError, match="was saved without evenstep"):
        even.fit(
            trainer_of(None, tmp_path, max_epochs=2),
            Module(),
            loader_of(),
            ckpt_path=tmp_path / "bare.ckpt",
        )


def test_a_schedule_over_samples_that_nobody_counted(tmp_path: Path) -> None:
    loader = evenstep.DataLoader(_Stream(), policy=evenstep.Even(256))
    with refused(r"give Trainer\(max_steps=\)"):
        even.estimated_stepping_batches(trainer_of(None, tmp_path), loader)
    trainer = trainer_of(None, tmp_path, max_steps=7)
    assert even.estimated_stepping_batches(trainer, loader) == 7


class _Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(DOCUMENTS)
