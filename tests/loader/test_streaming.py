"""Chunks of iterable datasets come in one order, and come again from any place on.

Workers are simulated: each has its own copy of the dataset, and they are asked in turn, as torch's
DataLoader asks them.
"""

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
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from evenstep.loader.workers import iterable
from evenstep.loader.workers.chunks import Chunk, Preparation, RawChunk
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog, WorkerStates


def worker_number() -> int:
    info = iterable.get_worker_info()
    return info.id if info is not None else 0


class Plain(IterableDataset):
    """Worker w has the samples (w, 0), (w, 1), ...; it cannot say where it is."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __iter__(self) -> Iterator[Any]:
        worker = worker_number()
        return ((worker, number) for number in range(self.counts[worker]))


class StatefulDataset(Plain):
    """Knows how many samples it has yielded, and begins again after the last."""

    done = 0

    def __iter__(self) -> Iterator[Any]:
        worker = worker_number()
        while self.done < self.counts[worker]:
            self.done += 1
            yield worker, self.done - 1
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": np.int64(self.done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class StatefulIterator:
    def __init__(self, worker: int, count: int) -> None:
        self.worker, self.count, self.done = worker, count, 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        if self.done >= self.count:
            raise StopIteration
        self.done += 1
        return self.worker, self.done - 1

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class ByIterator(Plain):
    def __iter__(self) -> Iterator[Any]:
        worker = worker_number()
        return StatefulIterator(worker, self.counts[worker])


KINDS = {"dataset": StatefulDataset, "iterator": ByIterator, "replay": Plain}


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


COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=4)
"""Samples of each worker."""


@pytest.mark.parametrize("kind", KINDS)
@given(COUNTS, st.booleans(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_from_every_place_on_the_same_samples_come_again(
    kind: str, counts: list[int], processes: bool, size: int, draw: random.Random
) -> None:
    workers = len(counts) if processes or len(counts) > 1 else 0
    dataset = KINDS[kind](counts)

    def run(states: WorkerStates | None) -> tuple[list[Any], list[WorkerStates]]:
        """All samples, and for every place how to have them again from it on."""
        log = WorkerStateLog(max(workers, 1), states)
        samples: list[Any] = []
        first = needed = states.place if states else 0
        found = []
        for raw in raw_chunks(dataset, workers, size, replays=kind == "replay", states=states):
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
    assert sorted(whole) == [(w, n) for w, count in enumerate(counts) for n in range(count)]
    for _ in range(3):  # resumed, and resumed again
        states = draw.choice(found)
        rest, found = run(states)
        assert rest == whole[states.place :]
        if not found:
            break
