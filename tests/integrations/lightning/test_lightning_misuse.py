"""Lightning: what would train wrongly is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attention_notices import notices

pytest.importorskip("lightning.fabric")

from lightning_job import Module, trained, trainer_of
from update_checks import DOCUMENTS, check_epoch, loader_of

import evenstep
from evenstep.errors import MismatchError
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(60)]


def refused(pattern: str) -> Any:
    return pytest.raises(evenstep.ConfigurationError, match=pattern)


def test_a_loader_that_is_given_bare(tmp_path: Path) -> None:
    with refused(r"write: .* as even; even\.fit\(trainer, module, loader\); a loader of a module"):
        trainer_of(None, tmp_path).fit(Module(), loader_of())

    class First(Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch[0], batch_idx)

    module = First()
    even.fit(trainer_of(None, tmp_path), module, [even.loader(loader_of())])
    check_epoch([trained(module)[0]], 1)


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


def test_attention_that_is_slow_where_shapes_vary_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        for _ in range(2):
            even.fit(trainer_of(None, tmp_path, fast_dev_run=True), Module(), loader_of())

    assert len(notices(monkeypatch, caplog, train)) == 1


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


class Validated(Module):
    """Validates on what it is told to."""

    def __init__(self, own: Any = None) -> None:
        super().__init__()
        self.own = own
        self.validated: list[float] = []

    def val_dataloader(self) -> Any:
        return [] if self.own is None else self.own()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(self.model(**batch).loss.item())


BARE = r"is even\.loader\(loader\)"
EVALUATED: dict[str, Any] = {
    "of the module": (BARE, lambda trainer: even.fit(trainer, Validated(loader_of), loader_of())),
    "of validate": (BARE, lambda trainer: trainer.validate(Validated(), loader_of())),
}


def torch_loader() -> Any:
    collate_fn = evenstep.PadCollator()
    return torch.utils.data.DataLoader(DOCUMENTS, batch_size=7, collate_fn=collate_fn)


@pytest.mark.parametrize("case", EVALUATED)
def test_a_bare_loader_for_evaluation_is_refused_before_the_first_step(
    tmp_path: Path, case: str
) -> None:
    pattern, fit = EVALUATED[case]
    trainer = trainer_of(None, tmp_path, num_sanity_val_steps=0)
    with refused(pattern):
        fit(trainer)
    assert trainer.global_step == 0


def test_torchs_loader_evaluates_while_evensteps_trains(tmp_path: Path) -> None:
    module = Validated()
    trainer = trainer_of(None, tmp_path, val_check_interval=3, num_sanity_val_steps=0)
    even.fit(trainer, module, loader_of(), torch_loader())
    check_epoch([trained(module)[0]], 1)
    first = Validated().model
    wanted = [first(**batch).loss.item() for batch in torch_loader()]
    frozen = Validated()
    trainer_of(None, tmp_path, callbacks=[even.StepCallback()]).validate(frozen, torch_loader())
    assert frozen.validated == pytest.approx(wanted, rel=1e-6)
    times, rest = divmod(len(module.validated), len(wanted))
    assert times == trainer.global_step // 3 > 1
    assert not rest


def test_loaders_that_one_loss_cannot_serve(tmp_path: Path) -> None:
    with refused("2 evenstep loaders feed one training_step"):
        even.fit(trainer_of(None, tmp_path), Module(), [even.loader(loader_of()) for _ in range(2)])
    with refused("list, which cannot carry its step"):
        even.fit(trainer_of(None, tmp_path), Module(), loader_of(collate_fn=list))
    policy = evenstep.WorkloadPacking(128, micro_batches=3)
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
    with pytest.raises(MismatchError, match="was saved without evenstep"):
        even.fit(
            trainer_of(None, tmp_path, max_epochs=2),
            Module(),
            loader_of(),
            ckpt_path=tmp_path / "bare.ckpt",
        )
