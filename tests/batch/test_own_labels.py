"""Samples with labels and without in one group: those without are supervised on all tokens but the
first. And labels under the names that collate functions of Hugging Face rename."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.batch import Measure, PackCollator, PadCollator

IGNORED = -100
KINDS = (list, np.array, torch.tensor, lambda row: np.array(row, np.uint8))


def with_prompt(tokens: list[int], prompt: int) -> list[int]:
    return [IGNORED] * prompt + tokens[prompt:]


ROWS = [[7, 8, 9], [4, 5], [1, 2, 3, 6], [250]]
LABELS: list[list[int] | None] = [None, with_prompt([4, 5], 1), None, None]
WANTED = [[IGNORED, 8, 9], [IGNORED, 5], [IGNORED, 2, 3, 6], [IGNORED]]


def mixed(kind: Any, missing: bool) -> list[dict[str, Any]]:
    """
    Args:
        missing: whether samples without labels have no such field, rather than None in it.
    """
    samples = [{"input_ids": kind(row), "labels": labels} for row, labels in zip(ROWS, LABELS)]
    if missing:
        samples = [{k: v for k, v in sample.items() if v is not None} for sample in samples]
    return samples


@pytest.mark.parametrize(("kind", "missing"), [(kind, n % 2 == 0) for n, kind in enumerate(KINDS)])
def test_packed_and_padded_labels_are_those_of_each_sample(kind: Any, missing: bool) -> None:
    samples = mixed(kind, missing)
    before = [list(map(int, sample["input_ids"])) for sample in samples]
    measured = Measure()(samples, ["a sample"] * len(samples))[:, 1].tolist()
    assert measured == [2, 1, 3, 0]
    packed = PackCollator()(samples)
    assert packed["labels"].tolist() == [list(chain(*WANTED))]
    for side in ("right", "left"):
        padded = PadCollator(side=side)(samples)
        for row, mask, wanted in zip(padded["labels"], padded["attention_mask"].bool(), WANTED):
            assert row[mask].tolist() == wanted
            assert (row[~mask] == IGNORED).all()
    assert [list(map(int, sample["input_ids"])) for sample in samples] == before == ROWS


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_a_data_set_has_shifted_go_with_shifted_ones(kind: Any) -> None:
    shifted = [[*wanted[1:], IGNORED] for wanted in WANTED]
    samples = mixed(kind, True)
    samples[1]["labels"] = shifted[1]
    for group, wanted in ((samples, shifted), (samples[2:], shifted[2:])):
        batch = PackCollator(mask_first_label=False)(group)
        assert batch["labels"].tolist() == [list(chain(*wanted))]


def test_padding_that_a_sample_comes_with_is_not_supervised() -> None:
    samples = [
        {"input_ids": [1, 2, 0, 0], "attention_mask": [1, 1, 0, 0]},
        {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "labels": [5, 6, 7]},
    ]
    batch = PadCollator()(samples)
    assert batch["labels"].tolist() == [[IGNORED, 2, IGNORED, IGNORED], [5, 6, 7, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]  # not made anew


@pytest.mark.parametrize(
    ("name", "values", "dtype"),
    [
        ("label", [2, 0], torch.int64),
        ("label", [True, False], torch.int64),
        ("label", [0.5, 2.0], torch.float32),
        ("label", [torch.tensor(2.5), torch.tensor(1.0)], torch.float32),
        ("label", [np.float64(0.5), np.float64(1)], torch.float32),
        ("label", [np.int32(3), np.int32(1)], torch.int64),
        ("label_ids", [[1, 2], [0, 3]], torch.int64),
        ("label_ids", [[0.5, 0.25], [1.0, 0.0]], torch.float32),
        ("label_ids", [torch.tensor([1, 2]), torch.tensor([4, 5])], torch.int64),
    ],
)
def test_a_label_is_named_as_hugging_face_names_it(name: str, values: Any, dtype: Any) -> None:
    transformers = pytest.importorskip("transformers")
    samples = [{"input_ids": [n, n], name: value} for n, value in enumerate(values, 1)]
    theirs = transformers.default_data_collator(samples)["labels"]
    batch = PadCollator()(samples)
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}
    assert batch["labels"].dtype == theirs.dtype == dtype
    assert torch.equal(batch["labels"], theirs)
    if theirs.ndim == 1:
        assert torch.equal(PackCollator()(samples)["labels"], theirs)
