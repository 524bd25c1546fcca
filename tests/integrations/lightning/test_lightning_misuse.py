"""Lightning: what would train wrongly is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.fabric")

from lightning_job import Module, trained, trainer_of
from update_checks import DOCUMENTS, check_epoch, loader_of

import evenstep
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(60)]


class Silent(Module):
    """Asks for no callback."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(**batch).loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        pass


class Manual(Module):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx).backward()
        self.optimizers().step()


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


def torch_loader() -> Any:
    collate_fn = evenstep.PadCollator()
    return torch.utils.data.DataLoader(DOCUMENTS, batch_size=7, collate_fn=collate_fn)


def loaders(count: int) -> list[Any]:
    return [even.loader(loader_of()) for _ in range(count)]


def fit(module: Any, *given: Any, **options: Any) -> Any:
    return lambda trainer: even.fit(trainer, module(), *(each() for each in given), **options)


PARTS = {"accumulate_grad_batches": 3}
MICRO = evenstep.WorkloadPacking(128, micro_batches=3)
BARE = r"is even\.loader\(loader\)"
REFUSED: dict[str, tuple[str, dict[str, Any], Any]] = {  # what is said, the trainer, what is done
    "bare": (
        r"write: .* as even; even\.fit\(trainer, module, loader\); a loader of a module",
        {},
        lambda trainer: trainer.fit(Module(), loader_of()),
    ),
    "no callback": (
        r"or Trainer\(callbacks=\[even\.StepCallback\(\)\]\)",
        {},
        lambda trainer: trainer.fit(Silent(), *loaders(1)),
    ),
    "other updates": ("give both the same", PARTS, fit(Module, lambda: loader_of(2))),
    "a part of an update": (
        "limit_train_batches as a multiple",
        {**PARTS, "limit_train_batches": 4},
        fit(Module, lambda: loader_of(3)),
    ),
    "own backward": (r"call self\.manual_backward\(loss\)", {}, fit(Manual, loader_of)),
    "bare in the module": (BARE, {}, fit(lambda: Validated(loader_of), loader_of)),
    "bare for validate": (BARE, {}, lambda trainer: trainer.validate(Validated(), loader_of())),
    "two": ("2 evenstep loaders feed one training_step", {}, fit(Module, lambda: loaders(2))),
    "lists": (
        "list, which cannot carry its step",
        {},
        fit(Module, lambda: loader_of(collate_fn=list)),
    ),
    "micro-batches": (
        "makes 3 micro-batches of a step",
        {},
        lambda _: even.loader(evenstep.DataLoader(DOCUMENTS, policy=MICRO)),
    ),
    "torch's": ("no evenstep.DataLoader", {}, lambda _: even.loader(torch_loader())),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_train_wrong_is_refused(tmp_path: Path, case: str) -> None:
    said, options, job = REFUSED[case]
    trainer = trainer_of(None, tmp_path, num_sanity_val_steps=0, **options)
    with pytest.raises(evenstep.ConfigurationError, match=said):
        job(trainer)
    assert trainer.global_step <= 1
    assert "bare" not in case or trainer.global_step == 0


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


def test_a_checkpoint_in_the_middle_of_an_update(tmp_path: Path) -> None:
    class Saving(Module):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                self.trainer.save_checkpoint(tmp_path / "part.ckpt")

    with pytest.warns(UserWarning, match="after step 1, in the middle of an update"):
        even.fit(trainer_of(None, tmp_path, accumulate_grad_batches=3), Saving(), loader_of(3))
