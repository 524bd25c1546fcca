"""Samples of any kind arrive whole and once; and how many steps a loader makes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import evenstep
from documents import Documents
from loader_options import grouped
from same_values import same

COUNT = 50


def tokens_of(number: int) -> torch.Tensor:
    return torch.arange(1 + number % 11) + 100 * number


@dataclass
class Record:
    input_ids: torch.Tensor
    pixels: np.ndarray


@dataclass
class Opaque:
    """Its length is nowhere in it."""

    number: int


Fields = namedtuple("Fields", ["input_ids", "name"])


def as_record(number: int) -> Record:
    return Record(tokens_of(number), np.full((2, number % 5, 3), number, np.float32))


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], int] | None]] = {
    "dict": (lambda n: {"input_ids": tokens_of(n), "nested": {"n": np.ones(n), "no": None}}, None),
    "tuple": (lambda n: (tokens_of(n), n, {"name": str(n)}), None),
    "dataclass": (as_record, lambda record: 1 + record.pixels.size // 3),
    "namedtuple": (lambda n: Fields(tokens_of(n).tolist(), f"fields {n}"), None),
    "tensor": (tokens_of, None),
    "object": (Opaque, lambda sample: 1 + sample.number % 11),
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_any_kind_arrive_whole_and_once(kind: str) -> None:
    make, length = KINDS[kind]
    loader = evenstep.DataLoader(
        [make(number) for number in range(COUNT)],
        policy=evenstep.TokenBudget(32),
        collate_fn=lambda samples: samples,
        length_fn=length,
        shuffle=True,
        num_workers=int(kind == "dataclass"),
        loss_scaling="sample",
        memory=evenstep.Memory(buffer_size=16),
    )
    seen: list[int] = []
    for batch, step in loader.steps():
        assert step.tokens == sum(map(length or evenstep.batch.length_of, batch))
        for index, sample in zip(step.indices, batch, strict=True):
            assert same(sample, make(index))
        seen += step.indices
    assert sorted(seen) == list(range(COUNT))
    loader.close()


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
