"""Which blank a loader has, and what it says where it has none."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("PIL")

import evenstep
from blank_job import FAMILY, ROWS, collate_again, loader_of
from evenstep.errors import CollateError
from evenstep.loader.arguments import resolve_blank
from evenstep.loader.batcher.batch_assembly import GroupCollate
from loader_options import grouped
from row_collate import Collate

POLICY = evenstep.Even(max_tokens=256)


def of(dataset: Any, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(dataset, policy=POLICY, **grouped(buffer_size=8, **options))


def test_without_a_processor_the_blank_is_a_samples():
    rows = [{"text": "abc", "images": []}, {"text": "xaby", "images": [1]}]
    blank = of(rows, collate_fn=Collate()).blank
    assert blank.fields["input_ids"].tolist() == [ord(letter) for letter in "xaby"]
    rows = [{"text": "abc", "images": []}, {"text": "abxcxb", "images": [1]}]
    blank = of(rows, collate_fn=Collate()).blank
    assert blank.fields["input_ids"].tolist() == [ord(letter) for letter in "xcx"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"blank": {"input_ids": [1]}}, "must be a processor, or a prepared sample"),
        ({"blank": 3}, "must be a processor, or a prepared sample"),
        ({"blank": True}, "must be a processor, or a prepared sample"),
        ({"blank": ROWS[1]}, "must be a processor, or a prepared sample"),
        (
            {"blank": FAMILY.processor(), "collate_fn": collate_again()},
            "pass one of the",
        ),
        (
            {"blank": loader_of(None).blank, "collate_fn": collate_again()},
            "is a Blank, .*pass one of the",
        ),
    ],
)
def test_other_values_are_refused(options, why):
    with pytest.raises(evenstep.ConfigurationError, match=why):
        of(ROWS, **options)


def test_a_rank_says_once_that_groups_lack_images_that_others_have(caplog):
    spec: Any = SimpleNamespace(
        rank=1,
        world_size=2,
        blank=None,
        collate_fn=evenstep.PadCollator(),
        policy=POLICY,
        loss_scaling="token",
    )
    text, image = {"input_ids": [1]}, {"input_ids": [1], "pixel_values": torch.ones(1, 1)}

    def said(*groups: list[Any]) -> list[str]:
        caplog.clear()
        group_collate = GroupCollate(spec)
        with caplog.at_level(logging.WARNING, "evenstep"):
            for group in groups:
                assert len(group_collate(group)["input_ids"]) == len(group)
        return caplog.messages

    assert not said([text], [text])
    assert not said([image], [image, text])
    (message,) = said([text], [text], [image], [text], [image])
    assert message.startswith("rank 1 has batches with images and batches without")
    assert "blank=" in message
    spec.blank = False
    assert not said([text], [image])
    spec.blank, spec.world_size = None, 1
    assert not said([text], [image])


class Noting(Collate):
    """Takes fields out of its rows, and counts them."""

    def __init__(self) -> None:
        super().__init__(side="left")
        self.calls: list[int] = []

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(len(rows))
        return super().__call__(rows)


def rows_spec(collate_fn: Any, blank: Any, **options: Any) -> Any:
    blank = resolve_blank(blank, collate_fn)
    given = {"rank": 0, "world_size": 2, "loss_scaling": "token", "policy": POLICY}
    return SimpleNamespace(collate_fn=collate_fn, blank=blank, **given | options)


TEXT, IMAGE = {"text": "abc", "images": []}, {"text": "xyzw", "images": [5]}


def test_a_group_of_rows_without_an_image_gets_a_row_and_no_other_is_collated_twice():
    collate = Noting()
    group_collate = GroupCollate(rows_spec(collate, IMAGE))
    for _ in range(2):
        batch = group_collate([TEXT, TEXT])
        assert batch["input_ids"].shape == (3, 4)
        assert (batch["labels"][-1] == -100).all()
        alone = Collate(side="left")([dict(TEXT), dict(TEXT), dict(IMAGE)])
        assert torch.equal(batch["input_ids"], alone["input_ids"])
        assert torch.equal(batch["labels"][:2], alone["labels"][:2])
        assert torch.equal(batch["pixel_values"], alone["pixel_values"])
    assert len(group_collate([TEXT, IMAGE])["input_ids"]) == 2
    assert collate.calls == [1, 2, 3, 2, 3, 2]  # the blank alone, first


class NoLabels(Collate):
    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(rows)
        del batch["labels"]
        return batch


class InBatch(Collate):
    """Each row has the first token of the next, as a negative."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(rows)
        return {**batch, "negatives": batch["input_ids"][:, 0].roll(-1)}


@pytest.mark.parametrize(
    ("collate", "options", "why"),
    [
        (NoLabels(), {}, "no label for each"),
        (InBatch(), {}, "another 'negatives'"),
        (Collate(), {"loss_scaling": "sample"}, "counts rows"),
        (Collate(), {"blank": TEXT}, "a row that has none"),
    ],
)
def test_a_row_that_would_change_the_loss_is_refused(collate, options, why):
    blank = options.pop("blank", IMAGE)
    group_collate = GroupCollate(rows_spec(collate, blank, **options))
    with pytest.raises(CollateError, match=f"{why}.*Let collate_fn.*blank=False"):
        group_collate([TEXT, {"text": "q", "images": []}])
