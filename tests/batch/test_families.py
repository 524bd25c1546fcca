"""Rows of every model family, prepared one by one, make the batch that the family makes of them,
padded, and its loss and gradient, packed: each sample has its own positions and sees itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from evenstep import PadCollator, PreparingCollator
from evenstep.batch import unbatch
from evenstep.errors import CollateError
from families import FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_prepared_alone_make_the_familys_own_batch(name: str) -> None:
    family = FAMILIES[name]
    media = [1, 1, 1] if family.always_media else [2, 0, 1, 0, 2]
    # Sizes and lengths follow from the numbers of rows.
    rows = [family.row(3 * number + 1, images=count) for number, count in enumerate(media)]
    collate = PadCollator(side=family.padding_side, pad_token_id=family.pad_token_id or 0)
    ours, theirs = collate([unbatch(family.collate([row])) for row in rows]), family.collate(rows)
    assert ours.keys() == theirs.keys()
    for field, value in theirs.items():
        assert ours[field].dtype == value.dtype, field
        assert torch.equal(ours[field], value), field


def gradient(model: torch.nn.Module, batch: Any) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return loss.item(), torch.cat([g.flatten() for g in grads])


def packed(name: str, config: Any, numbers: tuple[int, ...]) -> Any:
    made = PreparingCollator(collate_fn=FAMILIES[name].collate, packed=True)
    made = replace(made, config=config)
    return made([made.prepare(FAMILIES[name].row(number)) for number in numbers])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("Gemma 3", "Whisper")])
def test_loss_and_gradient_of_a_packed_group_are_those_of_the_padded_batch(name: str) -> None:
    family, numbers = FAMILIES[name], (2, 0, 1, 3)
    model = family.model(0)
    batch = packed(name, model.config, numbers)
    assert batch["input_ids"].shape[0] == 1
    loss, found = gradient(model, batch)
    expected_loss, expected = gradient(model, family.collate([family.row(n) for n in numbers]))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_gemma_is_refused_by_name() -> None:
    with pytest.raises(CollateError, match=r"'gemma3', whose image tokens .* packed=False"):
        packed("Gemma 3", FAMILIES["Gemma 3"].model(0).config, (0, 1))
