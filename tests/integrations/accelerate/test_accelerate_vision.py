"""A loop with Accelerate on raw rows, of which the collate function makes tokens and pixels."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from accelerate import Accelerator
from vision_rows import Rows, gradient_of, of_one_batch

import evenstep
from evenstep.integrations import accelerate as even
from families import FAMILIES


@pytest.mark.parametrize("name", ["Qwen2.5-VL"])
def test_every_update_is_that_of_one_batch_of_its_rows(name: str) -> None:
    family = FAMILIES[name]
    rows = Rows(family, 17)
    loader = evenstep.DataLoader(
        rows, policy=evenstep.Even(max_tokens=512), collate_fn=family.collate, shuffle=True
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = family.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)
    updates: list[list[int]] = [[]]
    for batch in loader:
        with accelerator.accumulate(model):
            updates[-1] += loader.step.indices
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                gradient = gradient_of(model)
                _, expected = of_one_batch(model, family.collate, [rows[i] for i in updates[-1]])
                assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()
                updates.append([])
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(index for update in updates for index in update) == list(range(17))
