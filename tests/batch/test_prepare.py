"""A collate function that prepares: run on each row alone, and the same batches all the same."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from evenstep import PreparingCollator
from evenstep.batch import unbatch
from evenstep.errors import CollateError
from row_collate import Collate, few_rows


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [1, 4])
def test_groups_of_prepared_samples_are_what_the_function_makes_of_their_rows(side, multiple):
    collate = Collate(side=side, multiple=multiple)
    made = PreparingCollator(collate_fn=collate).learned(few_rows())
    made = pickle.loads(pickle.dumps(made))
    ours = made([made.prepare(row) for row in few_rows()])
    theirs = Collate(side=side)(few_rows())
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        same = ours[name] == value
        assert same if isinstance(same, bool) else bool(same.all()), name


def test_a_row_is_a_sample_without_padding_and_stays_as_it_is():
    row = few_rows()[0]
    sample = PreparingCollator(collate_fn=Collate(multiple=8)).prepare(row)
    assert sample["input_ids"].tolist() == [97, 98, 99]
    assert sample["attention_mask"].tolist() == [1, 1, 1]
    assert sample["labels"].tolist() == [-100, 98, 99]
    assert sample["image_grid_thw"].shape == (2, 3)
    assert row == few_rows()[0]
    tokens = torch.tensor([[1, 2, 3]])
    for labels, kept in (([-100, 2, -100], 3), ([5, 6, 7, -100, -100], 3), ([-100] * 2, 0)):
        sample = unbatch({"input_ids": tokens, "labels": torch.tensor([labels]), "of": ["a"]})
        assert sample["labels"].tolist() == labels[:kept]  # of another length, without its padding
        assert (sample["input_ids"].shape, sample["of"]) == ((3,), "a")


def test_packed_groups_need_the_models_rule_for_image_positions():
    pytest.importorskip("transformers")
    made = replace(PreparingCollator(collate_fn=Collate()).learned(few_rows()), packed=True)
    with pytest.raises(CollateError, match=r"PreparingCollator\(config=model.config\)"):
        made([made.prepare(row) for row in few_rows()])
    batch = made([made.prepare(row) for row in few_rows() if not row["images"]] * 2)
    assert batch["cu_seq_lens_q"].tolist() == [0, 7, 14]


class Mixing(Collate):
    """Its result depends on the other rows."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(rows)
        if self.field == "extra" and len(rows) > 1:
            batch["extra"] = torch.zeros(3)
        elif self.field in batch:
            batch[self.field] = batch[self.field] + len(rows)
        return batch


@pytest.mark.parametrize("field", ["input_ids", "labels"])
def test_a_function_that_makes_something_else_of_a_group_is_refused_by_the_field(field):
    with pytest.raises(
        CollateError, match=f"makes another '{field}' than of each alone.*again=True"
    ):
        PreparingCollator(collate_fn=Mixing(field)).learned(few_rows())
