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
from evenstep.loader.batcher.round_planner import sample_bytes


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


class Heavy(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples of 50 to 150 KB, the lightest first, all of one length."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.arange(10), "picture": np.zeros((200 + index) * 250, np.int8)}


def held_in_windows(size: int | str, memory: int) -> tuple[int, list[int]]:
    """The most bytes that a window of an epoch held, and its samples in each round."""
    loader = evenstep.DataLoader(
        Heavy(),
        policy=evenstep.TokenBudget(40),
        collate_fn=list,
        memory=evenstep.Memory(buffer_size=size, buffer_bytes=memory),
    )
    starts, seen = {}, 0
    steps = loader.steps()
    for batch, _ in steps:
        seen += len(batch)
        epoch = loader.state_dict()
        starts[epoch["epoch"]["round"]] = epoch["dp_rank_0"]["numbers"]
    assert seen == 400
    held = [sum((200 + n) * 250 for n in numbers) for numbers in starts.values()]
    return max(held), [len(numbers) for numbers in starts.values()]


@pytest.mark.parametrize("size", ["auto", 300])
def test_a_window_takes_half_of_the_memory_whatever_size_is_asked_for(
    size: int | str,
) -> None:
    plenty, sizes = held_in_windows(size, 1 << 30)
    assert plenty > 10_000_000
    assert 200 <= max(sizes) <= 256
    bound, sizes = held_in_windows(size, 2_000_000)
    # A window is sized by what the one before took, and here each sample takes more than the last.
    assert bound <= 1.6 * 1_000_000
    assert sizes[0] > 2 * sizes[-2]


def test_no_more_samples_than_there_is_memory_for_are_prepared_before_the_first_window() -> None:
    read = []

    class Watched(Heavy):
        def __getitem__(self, index: int) -> dict[str, Any]:
            read.append(index)
            return super().__getitem__(399 - index)

    loader = evenstep.DataLoader(
        Watched(),
        policy=evenstep.TokenBudget(40),
        memory=evenstep.Memory(buffer_size=300, buffer_bytes=2_000_000, chunk_size=1),
    )
    steps = loader.steps()
    next(steps)
    steps.close()
    # 1 MB are 7 samples: two windows, and the three groups that were trained on or prefetched.
    assert len(read) <= 2 * 7 + 3 * 4


def test_windows_grow_to_many_groups() -> None:
    policy = evenstep.Even(512)
    loader = evenstep.DataLoader(Documents(1500), policy=policy, shuffle=True)
    trained, steps = 0, loader.steps()
    while trained < 750:
        trained += len(next(steps)[0]["identity"])
    steps.close()
    assert loader.state_dict()["epoch"]["window_size"] > 400
