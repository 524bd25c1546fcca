"""A blank runs the vision tower, and changes neither the loss nor any gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

from evenstep import PadCollator, PreparingCollator
from evenstep.batch import unbatch
from evenstep.batch.blank import SIGHT, SOUND, Blank
from evenstep.batch.smallest_media import (
    blank_of,
    blank_of_sample,
    found_blank,
)
from evenstep.errors import CollateError
from families import FAMILIES, Family

CAUSAL = [family for family in FAMILIES.values() if not family.always_media]
WAYS = [*(("processor", place) for place in ("right", "left", "packed")), ("sample", "right")]
CASES = [
    pytest.param(family, source, place, id=f"{family.name}, {source}, {place}")
    for family in CAUSAL
    for source, place in WAYS
    if (family.name, place) != ("Gemma 3", "packed")  # which `PreparingCollator` refuses
    and ((place == "right" and source == "processor") or family in CAUSAL[:2])
]


def prepared(family: Family, media: list[int], first: int = 1) -> list[dict[str, Any]]:
    rows = [family.row(first + 3 * number, images=count) for number, count in enumerate(media)]
    return [unbatch(family.collate([row])) for row in rows]


def collator(family: Family, place: str, config: Any) -> PreparingCollator:
    pad = PadCollator(side="left" if place == "left" else "right")
    made = PreparingCollator(collate_fn=family.collate, collator=pad, config=config)
    return replace(made, packed=place == "packed")


def trained(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def close(one: torch.Tensor, other: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((one - other).abs().max() <= within * other.abs().max())


@pytest.mark.parametrize(("family", "source", "place"), CASES)
def test_a_blank_runs_the_tower_and_changes_no_loss_and_no_gradient(family, source, place):
    model = family.model(0)
    collate = collator(family, place, model.config)
    samples = prepared(family, [0, 0, 0])
    if source == "processor":
        blank = blank_of(family.processor())
    else:
        blank = found_blank(prepared(family, [2, 0, 1]))
    expected_loss, expected = trained(model, collate(samples))
    longer = blank.added_to(samples, packed=place == "packed")
    loss, found = trained(model, collate(longer))
    assert close(loss, expected_loss, 1e-6)
    # All that an image trains, and no text.
    _, of_image = trained(model, family.collate([family.row(1, images=1)]))
    assert any(of_image[name] is not None for name in of_image if name.startswith(family.tower))
    for name, gradient in found.items():
        if expected[name] is not None:
            assert close(gradient, expected[name]), name
        elif of_image[name] is not None:
            assert gradient is not None, name
            assert not gradient.any(), name


def test_the_shortest_sample_gets_it_and_packed_the_last():
    blank = Blank(fields={"input_ids": torch.tensor([8, 9]), "pixel_values": torch.ones(1, 4)})
    samples = [of_tokens(5), of_tokens(2), of_tokens(3)]
    padded, packed = blank.added_to(samples), blank.added_to(samples, packed=True)
    assert [len(sample["input_ids"]) for sample in padded] == [5, 4, 3]
    assert [len(sample["input_ids"]) for sample in packed] == [5, 2, 5]
    assert [len(sample["input_ids"]) for sample in samples] == [5, 2, 3]
    assert padded[1]["input_ids"].tolist() == [1, 1, 8, 9]
    assert padded[1]["labels"].tolist() == [1, 1, -100, -100]


def of_tokens(count: int, **others: Any) -> dict[str, Any]:
    return {"input_ids": [1] * count, "labels": [1] * count, **others}


def test_other_fields_of_a_sample_grow_with_it():
    blank = Blank(
        fields={
            "input_ids": torch.tensor([8, 9]),
            "mm_token_type_ids": torch.tensor([1, 0]),
            "pixel_values": torch.ones(1, 4),
        }
    )
    sample = of_tokens(
        3,
        attention_mask=[1, 1, 1],
        mm_token_type_ids=[0, 0, 0],
        position_ids=torch.arange(3),
        shift_labels=torch.tensor([1, 1, -100]),
        weights=torch.ones(3, 2),
        identity=7,
        name="abc",
        pixel_values=None,
    )
    (longer,) = blank.added_to([sample])
    assert longer["attention_mask"].tolist() == [1, 1, 1, 1, 1]
    assert longer["mm_token_type_ids"].tolist() == [0, 0, 0, 1, 0]
    assert longer["position_ids"].tolist() == [0, 1, 2, 3, 4]
    assert longer["shift_labels"].tolist() == [1, 1, -100, -100, -100]
    assert longer["weights"].tolist() == [[1, 1]] * 3 + [[0, 0]] * 2
    assert (longer["identity"], longer["name"]) == (7, "abc")
    assert longer["pixel_values"].shape == (1, 4)


def test_a_group_that_has_images_and_lacks_sound_gets_both():
    pixels, sound = {"pixel_values": torch.ones(2, 4)}, {"input_features": torch.ones(1, 3, 5)}
    blank = blank_of_sample(of_tokens(2) | pixels | sound)
    assert blank.towers == {SIGHT, SOUND}
    (longer,) = blank.added_to([of_tokens(3) | {"pixel_values": torch.zeros(1, 4)}])
    assert longer["pixel_values"].tolist() == [[0] * 4, [1] * 4, [1] * 4]
    assert longer["input_features"].shape == (1, 3, 5)
    whole = of_tokens(3) | pixels | sound
    assert blank.added_to([whole])[0] is whole


BLANK = Blank(fields={"input_ids": torch.tensor([8, 9]), "pixel_values": torch.ones(1, 4)})


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"input_ids": [1, 2]}, "a label for each"),
        ({"input_ids": [1, 2], "labels": [1, 2, 3]}, "a label for each"),
        ({"input_ids": [1, 2], "labels": torch.tensor(1)}, "a label for each"),
        ([1, 2, 3], "a label for each"),
        ({"labels": [1, 2]}, "no 'input_ids'"),
        (of_tokens(2, token_type_ids=[0, 1]), "attend in both directions"),
    ],
)
def test_a_sample_whose_loss_would_change_is_refused(sample, why):
    with pytest.raises(CollateError, match=why) as raised:
        BLANK.added_to([sample])
    assert "blank=False" in str(raised.value)
