"""What a worker does: chunks are whole, errors name the sample, attributes are forwarded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Subset

from documents import Documents
from evenstep import TokenBudget
from evenstep.batch import Measure
from evenstep.errors import SampleError
from evenstep.loader.transport.shared_memory import PackedObject, Reader
from evenstep.loader.workers.chunks import (
    Chunk,
    ChunkCollate,
    ChunkOrigin,
    ChunkRequest,
    IndexedDataset,
    RawChunk,
)
from evenstep.loader.workers.iterable import ChunkedIterable


class Words:
    """Not a torch dataset; refuses some samples."""

    def __getitem__(self, key: str) -> dict[str, torch.Tensor]:
        if key == "":
            raise LookupError("no word")
        return {"input_ids": torch.arange(len(key))}


class InBatches(Words):
    """Fetches many samples at once, as Hugging Face datasets do."""

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.asked: list[list[str]] = []

    def __getitems__(self, keys: list[str]) -> list[dict[str, torch.Tensor]]:
        self.asked.append(list(keys))
        return [self[key] for key in (keys if self.whole else keys[1:])]


def indexed(dataset: Any, *, skip_bad: bool = False) -> IndexedDataset:
    return IndexedDataset(dataset, skip_bad=skip_bad)


def prepare(dataset: Any, indices: list[Any], *, skip_bad: bool = False) -> RawChunk:
    return indexed(dataset, skip_bad=skip_bad).__getitems__([ChunkRequest(0, tuple(indices))])


def test_a_dataset_that_fetches_in_batches_is_asked_once() -> None:
    words = InBatches()
    raw = prepare(words, ["a", "bc"])
    assert [len(sample["input_ids"]) for sample in raw.samples] == [1, 2]
    assert words.asked == [["a", "bc"]]


def test_a_subset_names_its_own_index() -> None:
    subset = Subset(Documents(4), [0, 1, 9])
    with pytest.raises(SampleError, match="sample 2: the dataset raised IndexError"):
        prepare(subset, [0, 1, 2])


def test_a_batch_that_lacks_a_sample_is_refused() -> None:
    with pytest.raises(SampleError, match="one of sample 'a', sample 'b': "):
        prepare(InBatches(whole=False), ["a", "b"])


def collate(*, packed: bool = False, skip_bad: bool = False, max_tokens: int = 512) -> ChunkCollate:
    policy = TokenBudget(max_tokens)
    return ChunkCollate(measure=Measure(), policy=policy, skip_bad=skip_bad, packed=packed)


def samples_of(chunk: Chunk) -> list[Any]:
    return (
        Reader().unpack(chunk.payload) if isinstance(chunk.payload, PackedObject) else chunk.payload
    )


@pytest.mark.parametrize("packed", [False, True])
def test_samples_that_cannot_be_used_are_left_out_with_place_and_reason(packed: bool) -> None:
    raw = RawChunk(
        [{"input_ids": [1] * n} for n in (3, 9, 0, 8)] + [SampleError("it is torn")],
        [f"sample {place}" for place in range(5)],
    )
    chunk = collate(packed=packed, skip_bad=True, max_tokens=8)(raw)
    assert (chunk.size, chunk.positions.tolist()) == (5, [0, 3])
    assert [len(sample["input_ids"]) for sample in samples_of(chunk)] == [3, 8]
    assert chunk.columns[:, 0].tolist() == [3, 8]
    assert [place for place, _ in chunk.bad] == [1, 2, 4]
    for (_, reason), said in zip(chunk.bad, ["over max_tokens=8", "length 0", "torn"]):
        assert said in reason


@pytest.mark.parametrize("packed", [False, True])
def test_a_chunk_without_good_samples_is_empty_and_names_its_origin(packed: bool) -> None:
    chunks = collate(packed=packed, skip_bad=True)
    origin = ChunkOrigin(1, "state", True)
    for samples, bad in ((), 0), (({"input_ids": []}, {"input_ids": []}), 2):
        names = [f"sample {place}" for place in range(len(samples))]
        chunk = chunks(RawChunk(list(samples), names, origin))
        assert chunk.size == len(samples)
        assert chunk.columns.shape == (0, 5)
        assert samples_of(chunk) == []
        assert len(chunk.bad) == bad
        assert chunk.origin == origin


class Numbers(IterableDataset):
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self):
        return ([1] * length for length in self.lengths)


def test_numbers_of_unindexed_samples_run_on() -> None:
    chunks = collate()
    stream = iter(ChunkedIterable(Numbers([2] * 16 + [0]), 5, replays=False))
    for _ in range(3):
        chunks(next(stream))
    with pytest.raises(SampleError, match="sample number 16 of its worker has length 0"):
        chunks(next(stream))
