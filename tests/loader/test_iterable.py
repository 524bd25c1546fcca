"""Iterable datasets: whatever the workers' shares are, no sample is lost and errors are raised; and
from any place on the same chunks come again."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from streams import StatefulStream, Stream, WithIterator
from torch.utils.data import IterableDataset

import evenstep
from evenstep.errors import SampleError
from evenstep.loader.workers import iterable
from evenstep.loader.workers.chunks import Chunk, Preparation, RawChunk
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog, WorkerStates


def number(value: int) -> dict[str, Any]:
    return {"input_ids": torch.full((1 + value % 7,), value)}


class Endless(IterableDataset):
    """Says that it has few samples."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(number, itertools.count())

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_endless_dataset_may_be_left_at_any_time_and_its_length_ends_nothing(
    workers: int,
) -> None:
    loader = evenstep.DataLoader(
        Endless(), batch_size=2, num_workers=workers, memory=evenstep.Memory(buffer_size=8)
    )
    assert len(loader) == 2
    for _ in range(2):
        firsts = [int(b["input_ids"][0, 0]) for b, _ in itertools.islice(loader.steps(), 5)]
        assert firsts == [0, 2, 4, 6, 8]


class Torn(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(number, range(7))
        raise EOFError("torn")


def test_an_error_ends_it_in_any_case_and_says_after_how_many_samples_also_when_resumed() -> None:
    def steps(state: Any = None) -> Any:
        memory = evenstep.Memory(buffer_size=2, chunk_size=2, prefetch=1)
        loader = evenstep.DataLoader(
            Torn(),
            batch_size=1,
            memory=memory,
            faults=evenstep.Faults(replay=True, skip_bad_samples=1000),
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


# Workers are simulated: each has its own copy of the dataset, and they are asked in turn, as by
# torch's DataLoader.


def raw_chunks(
    dataset: Any, workers: int, size: int, *, replays: bool, states: WorkerStates | None = None
) -> Iterator[RawChunk]:
    """As torch's DataLoader gets them from `workers` processes; 0 is the process itself."""
    if states is not None:
        states = WorkerStates.from_json(states.to_json())
    chunked = ChunkedIterable(dataset, size, Preparation(None, skip_bad=False), replays=replays)
    chunked.begin(states)
    copies = [pickle.loads(pickle.dumps(chunked)) for _ in range(workers)] or [chunked]
    iterators = [iter(copy) for copy in copies]
    ended: set[int] = set()
    for worker in itertools.cycle(range(len(copies))):
        info = SimpleNamespace(id=worker, num_workers=workers) if workers else None
        with mock.patch.object(iterable, "get_worker_info", return_value=info):
            raw = next(iterators[worker])
        assert raw.origin is not None
        assert raw.origin.worker == worker
        yield raw
        if raw.origin.ended:
            ended.add(worker)
        if len(ended) == len(copies):
            return


def as_chunk(raw: RawChunk) -> Chunk:
    count = len(raw.samples)
    columns = np.ones((count, 3), np.int64)
    return Chunk(count, np.arange(count), columns, raw.samples, (), raw.origin)


@pytest.mark.parametrize("kind", [Stream, StatefulStream, WithIterator])
@given(st.integers(0, 40), st.integers(0, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_from_every_place_on_the_same_samples_come_again(
    kind: type[Stream], count: int, workers: int, size: int, draw: random.Random
) -> None:
    dataset = kind(range(count))

    def run(states: WorkerStates | None) -> tuple[list[Any], list[WorkerStates]]:
        """All samples, and for every place how to have them again from it on."""
        log = WorkerStateLog(max(workers, 1), states)
        samples: list[Any] = []
        first = needed = states.place if states else 0
        found = []
        for raw in raw_chunks(dataset, workers, size, replays=kind is Stream, states=states):
            assert log.add(as_chunk(raw)) == first + len(samples)
            samples += raw.samples
            end = first + len(samples)
            # As a loader asks: for places that never decrease, some time after they came.
            for place in range(needed, draw.randint(needed, end) + 1):
                needed = place
                again = log.since(place)
                assert again is not None
                assert again.place <= place < max(again.place + size, end + 1)
                found.append(again)
        return samples, found

    whole, found = run(None)
    assert sorted(whole) == list(range(count))
    for _ in range(3):  # resumed, and resumed again
        states = draw.choice(found)
        rest, found = run(states)
        assert rest == whole[states.place :]
        if not found:
            break
