"""Samples that are fetched several at once; and how many steps a loader makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import evenstep
from documents import Documents
from loader_options import grouped

COUNT = 50


class InBatches(Documents):
    """Fetches many samples at once, as Hugging Face datasets do."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked = [*getattr(self, "asked", []), list(indices)]
        return [self[index] for index in indices]


def test_a_dataset_that_fetches_in_batches_is_asked_once_a_chunk() -> None:
    dataset = InBatches(COUNT)
    list(evenstep.DataLoader(dataset, batch_size=5, memory=evenstep.Memory(chunk_size=20)))
    assert dataset.asked == [[*range(20)], [*range(20, 40)], [*range(40, 50)]]


# How many steps


class Sampler:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": evenstep.TokenBudget(512)}, "TokenBudget depends on .*loader.epoch_samples"),
        ({"batch_size": 4, "sampler": Sampler(13)}, "number of samples is unknown"),
    ],
)
def test_a_length_that_is_not_known_is_not_made_up(options: dict[str, Any], named: str) -> None:
    loader = evenstep.DataLoader(Documents(COUNT), **grouped(**options))
    with pytest.raises(TypeError, match=named):
        len(loader)
