"""A Lightning module on raw rows, of which the collate function makes tokens and pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.pytorch")
from lightning.pytorch import LightningModule
from lightning_job import trainer_of
from update_checks import gradient_of
from vision_rows import Rows, of_one_batch

import evenstep
from evenstep.integrations import lightning as even
from families import FAMILIES

pytestmark = pytest.mark.integrations


class Module(LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.updates: list[list[int]] = [[]]
        self.gradients: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (callback,) = (c for c in self.trainer.callbacks if isinstance(c, even.StepCallback))
        self.updates[-1] += callback.step.indices
        return self.model(**batch).loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(gradient_of(self.model))
        self.updates.append([])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize("name", ["Qwen2.5-VL", "LLaVA-OneVision"])
def test_every_update_is_that_of_one_batch_of_its_rows(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    rows = Rows(family, 17)
    loader = evenstep.DataLoader(
        rows,
        policy=evenstep.Even(max_tokens=512),
        collate_fn=family.collate,
        shuffle=True,
        accumulate=2,
    )
    module = Module(family.model(0))
    even.fit(trainer_of(None, tmp_path, accumulate_grad_batches=2), module, loader)
    assert sorted(i for update in module.updates for i in update) == list(range(17))
    for update, gradient in zip(module.updates, module.gradients):
        _, expected = of_one_batch(module.model, family.collate, [rows[i] for i in update])
        assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()
