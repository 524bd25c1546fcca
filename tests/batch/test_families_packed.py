"""Packed groups of multimodal families: each sample has its own positions and sees itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("PIL")

from evenstep import PreparingCollator
from evenstep.errors import CollateError
from families import FAMILIES

PACKED = [name for name in FAMILIES if name not in ("Gemma 3", "Whisper")]
ROWS = (2, 0, 1, 3)


def gradient(model: torch.nn.Module, batch: Any) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return loss.item(), torch.cat([g.flatten() for g in grads])


def packing(name: str, config: Any) -> PreparingCollator:
    made = PreparingCollator(collate_fn=FAMILIES[name].collate, packed=True)
    return replace(made, config=config)


@pytest.mark.parametrize("name", PACKED)
def test_loss_and_gradient_of_a_packed_group_are_those_of_the_padded_batch(name):
    family = FAMILIES[name]
    rows = [family.row(number) for number in ROWS]
    model = family.model(0)
    made = packing(name, model.config)
    batch = made([made.prepare(row) for row in rows])
    assert batch["input_ids"].shape[0] == 1
    loss, found = gradient(model, batch)
    expected_loss, expected = gradient(model, family.collate(rows))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_gemma_is_refused_by_name():
    model = FAMILIES["Gemma 3"].model(0)
    made = packing("Gemma 3", model.config)
    samples = [made.prepare(FAMILIES["Gemma 3"].row(number)) for number in (0, 1)]
    with pytest.raises(CollateError, match=r"'gemma3', whose image tokens .* packed=False"):
        made(samples)


def test_positions_need_the_configuration():
    made = packing("Qwen2-VL", None)
    with pytest.raises(CollateError, match=r"PreparingCollator\(config=model.config\)"):
        made([made.prepare(FAMILIES["Qwen2-VL"].row(1))])
