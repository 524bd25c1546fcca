"""Samples of any kind arrive whole and once; and how many steps a loader makes."""

from __future__ import annotations

import dataclasses
import itertools
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import evenstep
from documents import Documents
from loader_options import grouped

COUNT = 50
LIMIT = 32


def tokens_of(number: int) -> torch.Tensor:
    return torch.arange(1 + number % 11) + 100 * number


def pixels_of(number: int) -> np.ndarray:
    return np.full((2, number % 5, 3), number, np.float32)


@dataclasses.dataclass
class Record:
    input_ids: torch.Tensor
    pixels: np.ndarray
    name: str


class Pair(NamedTuple):
    tokens: torch.Tensor
    name: str


Fields = namedtuple("Fields", ["input_ids", "name"])


class Opaque:
    """Not a container of any kind."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


def as_dict(number: int) -> dict[str, Any]:
    return {"input_ids": tokens_of(number), "nested": {"pixels": pixels_of(number), "none": None}}


def as_tuple(number: int) -> tuple[Any, ...]:
    return tokens_of(number), number, {"name": str(number)}


def as_record(number: int) -> Record:
    return Record(tokens_of(number), pixels_of(number), f"record {number}")


def as_pair(number: int) -> Pair:
    return Pair(tokens_of(number), f"pair {number}")


def as_fields(number: int) -> Fields:
    return Fields(tokens_of(number).tolist(), f"fields {number}")


def as_text(number: int) -> str:
    return "word " * (1 + number % 11) + str(number)


def count_words(text: str) -> int:
    return len(text.split()) - 1


def count_opaque(sample: Opaque) -> int:
    return 1 + sample.number % 11


def size_of_picture(sample: Record) -> int:
    return 1 + sample.pixels.size // 3


KINDS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "dict": (as_dict, {}),
    "tuple": (as_tuple, {}),
    "dataclass": (as_record, {}),
    "dataclass measured otherwise": (as_record, {"length_fn": size_of_picture}),
    "namedtuple": (as_pair, {}),
    "namedtuple with input_ids": (as_fields, {}),
    "tensor": (tokens_of, {}),
    "array": (lambda number: tokens_of(number).numpy(), {}),
    "list": (lambda number: tokens_of(number).tolist(), {}),
    "text": (as_text, {"length_fn": count_words}),
    "object": (Opaque, {"length_fn": count_opaque}),
}


def untouched(samples: list[Any]) -> list[Any]:
    return samples


def same(one: Any, other: Any) -> bool:
    """Equal in value and in kind."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Record):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(("kind", "workers"), zip(KINDS, itertools.cycle([0, 1])))
def test_samples_of_any_kind_arrive_whole_and_once(kind: str, workers: int) -> None:
    make, options = KINDS[kind]
    dataset = [make(number) for number in range(COUNT)]
    loader = evenstep.DataLoader(
        dataset,
        policy=evenstep.TokenBudget(LIMIT),
        collate_fn=untouched,
        shuffle=True,
        num_workers=workers,
        loss_scaling="sample",
        **grouped(buffer_size=16, **options),
    )
    length = options.get("length_fn", evenstep.batch.length_of)
    seen: list[int] = []
    for batch, step in loader.steps():
        assert step.tokens == sum(map(length, batch))
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count})"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": evenstep.TokenBudget(512)}, "TokenBudget depends on .*estimated_steps"),
        ({"batch_size": 4, "sampler": Sampler(13)}, "number of samples is unknown"),
    ],
)
def test_a_length_that_is_not_known_is_not_made_up(options: dict[str, Any], named: str) -> None:
    loader = evenstep.DataLoader(Documents(COUNT), **grouped(**options))
    with pytest.raises(TypeError, match=named):
        len(loader)


def test_the_number_of_steps_is_estimated_from_the_steps_so_far() -> None:
    loader = evenstep.DataLoader(
        [tokens_of(0)] * COUNT,
        policy=evenstep.TokenBudget(8),
        memory=evenstep.Memory(buffer_size=16),
    )
    assert loader.estimated_steps is None
    samples = 0
    for number, (_, step) in enumerate(loader.steps(), 1):
        samples += step.samples
        assert loader.estimated_steps == max(1, round(COUNT * number / samples))
    assert loader.estimated_steps == number
