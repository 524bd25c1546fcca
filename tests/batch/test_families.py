"""Rows of every model family, prepared one by one, make the batch that the family makes of them,
padded, and its loss and gradient, packed: each sample has its own positions and sees itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

import evenstep
from evenstep import PadCollator, PreparingCollator
from evenstep.batch import unbatch
from evenstep.errors import CollateError
from families import FAMILIES
from families.media import image_row


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


def of_whole_groups(name: str) -> tuple[Any, list[Any]]:
    """A collate function whose groups are no joined samples, and rows for it."""
    from families import from_rows

    images = (1, 2) if name == "MLLAMA" else (1, 0, 2)
    rows = [image_row(n, images=images[n % len(images)]) for n in range(8)]
    return getattr(from_rows, name), rows


@pytest.mark.parametrize("name", ["MLLAMA", "MINICPM"])
def test_groups_that_are_no_joined_samples_are_collated_from_rows(name: str) -> None:
    collate, rows = of_whole_groups(name)
    loader = evenstep.DataLoader(rows, policy=evenstep.Even(max_tokens=512), collate_fn=collate)
    places = {tuple(tokens_of(collate([row]), 0)): n for n, row in enumerate(rows)}
    seen = []
    for batch, _ in loader.steps():
        own = [places[tuple(tokens_of(batch, k))] for k in range(len(batch["input_ids"]))]
        theirs = collate([rows[n] for n in own])
        assert all(torch.equal(batch[field], value) for field, value in theirs.items())
        seen += own
    assert sorted(seen) == list(range(len(rows)))
    with pytest.raises(CollateError, match="and a policy that pads, such as"):
        PreparingCollator(collate_fn=collate, packed=True).learned(rows)


def tokens_of(batch: Any, row: int) -> list[int]:
    return batch["input_ids"][row][batch["attention_mask"][row].bool()].tolist()


def test_a_row_without_an_image_beside_others_is_refused_for_mllama() -> None:
    collate, rows = of_whole_groups("MLLAMA")
    rows = [*rows, image_row(9, images=0)]
    with pytest.raises(CollateError, match=r"as those of Mllama.* give every row one"):
        PreparingCollator(collate_fn=collate).learned(rows)
    made = PreparingCollator(collate_fn=collate).learned(rows[:-1])
    with pytest.raises(CollateError, match="as those of Mllama"):
        made([made.prepare(row) for row in rows[-2:]])
