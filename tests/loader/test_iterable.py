"""Iterable datasets: whatever the workers' shares are, no sample is lost and errors are raised."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import evenstep
from evenstep.errors import SampleError
from loader_options import grouped


def number(value: int) -> dict[str, Any]:
    return {"input_ids": torch.full((1 + value % 7,), value)}


def numbers_of(loader: evenstep.DataLoader) -> list[int]:
    return [int(row[0]) for batch, _ in loader.steps() for row in batch["input_ids"]]


class Lopsided(IterableDataset):
    """The first worker has little and is done long before the second has begun."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        assert worker is not None
        if worker.id == 1:
            time.sleep(0.3)
        yield from map(number, range(100, 164) if worker.id else range(8))


def test_what_a_worker_made_outlives_it() -> None:
    loader = evenstep.DataLoader(
        Lopsided(), batch_size=4, num_workers=2, memory=evenstep.Memory(chunk_size=4)
    )
    assert sorted(numbers_of(loader)) == [*range(8), *range(100, 164)]


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(number, itertools.count())


@pytest.mark.parametrize("workers", [0, 1])
def test_an_endless_dataset_may_be_left_at_any_time(workers: int) -> None:
    loader = evenstep.DataLoader(
        Endless(), batch_size=4, num_workers=workers, memory=evenstep.Memory(buffer_size=8)
    )
    for _ in range(2):
        firsts = [int(b["input_ids"][0, 0]) for b, _ in itertools.islice(loader.steps(), 5)]
        assert firsts == [0, 4, 8, 12, 16]


class Empty(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(())


@pytest.mark.parametrize("workers", [2])
def test_an_empty_dataset_makes_no_step(workers: int) -> None:
    loader = evenstep.DataLoader(Empty(), batch_size=2, num_workers=workers)
    assert list(loader) == []


class Sized(Endless):
    def __len__(self) -> int:
        return 3


def test_a_length_of_an_iterable_dataset_is_told_and_ends_nothing() -> None:
    loader = evenstep.DataLoader(Sized(), batch_size=2, memory=evenstep.Memory(buffer_size=8))
    assert len(loader) == 2
    assert len(list(itertools.islice(loader.steps(), 10))) == 10


class Uneven(IterableDataset):
    """Worker 0 has few samples, worker 1 none, worker 2 many."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        assert worker is not None
        for place in range((5, 0, 23)[worker.id]):
            yield {"input_ids": torch.full((1 + place % 4,), 100 * worker.id + place)}


def test_workers_take_turns_of_a_chunk_each() -> None:
    def order(**options: Any) -> list[int]:
        options |= {"chunk_size": 2, "buffer_size": 8}
        return numbers_of(
            evenstep.DataLoader(Uneven(), batch_size=4, num_workers=3, **grouped(**options))
        )

    by_turns = [[0, 1], [200, 201], [2, 3], [202, 203], [4], [*range(204, 223)]]
    expected = list(itertools.chain(*by_turns))
    assert order() == expected
    assert order(prefetch_factor=5, prefetch=1) == expected


class Torn(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(number, range(7))
        raise EOFError("torn")


def test_an_error_says_after_how_many_samples_also_when_resumed() -> None:
    def steps(state: Any = None) -> Any:
        memory = evenstep.Memory(buffer_size=2, chunk_size=2, prefetch=1)
        loader = evenstep.DataLoader(
            Torn(), batch_size=1, memory=memory, faults=evenstep.Faults(replay=True)
        )
        if state is not None:
            loader.load_state_dict(state)
        for batch, _ in loader.steps():
            yield int(batch["input_ids"][0, 0]), loader.state_dict()

    said = r"worker 0, after 7 samples: the dataset raised EOFError: torn; fix"
    states = []

    def train() -> None:
        states.extend(state for _, state in steps())

    with pytest.raises(SampleError, match=said):
        train()
    with pytest.raises(SampleError, match=said):
        list(steps(states[2]))
