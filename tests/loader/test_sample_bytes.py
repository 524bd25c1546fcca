"""The memory of samples, and windows that are sized by it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import evenstep
from documents import Documents
from evenstep.loader.batcher import round_planner
from evenstep.loader.batcher.sample_bytes import sample_bytes


@dataclass
class Picture:
    pixels: Any
    itself: Any = None


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (torch.zeros(10, 3), 120),
        (np.zeros(7, np.int64), 56),
        ({"a": torch.zeros(5), "b": [np.zeros(2, np.int8)] * 3}, 26),
        ((torch.zeros(4, dtype=torch.int64),), 32),
        ([], 0),
        ("some text", sys.getsizeof("some text")),
        ([1] * 1000, 1000 * sys.getsizeof(1)),
    ],
    ids=["tensor", "array", "dict", "tuple", "empty", "text", "long list"],
)
def test_bytes_are_those_of_what_a_sample_holds(sample: Any, expected: int) -> None:
    assert sample_bytes(sample) == expected


def test_an_objects_fields_count_and_one_that_holds_itself_ends() -> None:
    picture = Picture(np.zeros(100_000, np.uint8))
    assert 100_000 <= sample_bytes(picture) < 101_000
    picture.itself = [picture]
    assert sample_bytes(picture) < 1_000_000


@pytest.mark.parametrize("num_workers", [0, 2])
def test_windows_grow_to_many_groups_unless_samples_are_large(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    def window_size() -> int:
        """When half of an epoch is trained on."""
        loader = evenstep.DataLoader(
            Documents(6000),
            policy=evenstep.Even(512),
            shuffle=True,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,  # sees what is patched
        )
        trained, steps = 0, loader.steps()
        for batch, _ in steps:
            trained += len(batch["identity"])
            if trained > 3000:
                break
        steps.close()
        return int(loader.state_dict()["epoch"]["window_size"])

    assert window_size() > 400
    usual = int(np.mean([sample_bytes(Documents(100)[i]) for i in range(100)]))
    monkeypatch.setattr(round_planner, "SAMPLE_BYTES", 2 * 100 * usual)
    assert 80 <= window_size() <= 125
