"""What a worker does: samples carry their index, errors name it, the dataset shows through."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from documents import Documents
from evenstep import TokenBudget
from evenstep.batch import Measure
from evenstep.errors import SampleError
from evenstep.loader.arena import Packed, Reader
from evenstep.loader.chunks import ChunkCollate, IndexedDataset


class Words:
    """Not a torch dataset; has a state of its own, and refuses some samples."""

    def __init__(self) -> None:
        self.language = "la"

    def __getitem__(self, key: str) -> dict[str, torch.Tensor]:
        if key == "":
            raise LookupError("no word")
        return {"input_ids": torch.arange(len(key))}

    def shout(self) -> str:
        return self.language.upper()


class InBatches(Words):
    """Fetches many samples at once, as Hugging Face datasets do."""

    def __init__(self, *, whole: bool = True) -> None:
        super().__init__()
        self.whole = whole
        self.asked: list[list[str]] = []

    def __getitems__(self, keys: list[str]) -> list[dict[str, torch.Tensor]]:
        self.asked.append(list(keys))
        return [self[key] for key in (keys if self.whole else keys[1:])]


def test_samples_come_with_their_index_of_any_kind() -> None:
    dataset = IndexedDataset(Words())
    pairs = dataset.__getitems__(["a", "bcd"])
    assert [(key, len(sample["input_ids"])) for key, sample in pairs] == [("a", 1), ("bcd", 3)]
    assert dataset["ab"][0] == "ab"


def test_the_dataset_shows_through_for_reading_and_writing() -> None:
    words = Words()
    dataset = IndexedDataset(words)
    assert dataset.language == "la"
    assert dataset.shout() == "LA"
    dataset.language = "fr"
    assert words.language == "fr"
    with pytest.raises(AttributeError, match="pages"):
        _ = dataset.pages


def test_it_travels_to_a_worker_with_its_dataset() -> None:
    dataset = pickle.loads(pickle.dumps(IndexedDataset(Documents(5, seed=2))))
    index, sample = dataset[3]
    assert index == sample["identity"] == 3
    assert dataset.seed == 2


def test_a_dataset_that_fetches_in_batches_is_asked_once() -> None:
    words = InBatches()
    assert [key for key, _ in IndexedDataset(words).__getitems__(["a", "b"])] == ["a", "b"]
    assert words.asked == [["a", "b"]]


@pytest.mark.parametrize("words", [Words(), InBatches()], ids=["singly", "in batches"])
def test_an_error_names_the_one_sample_that_cannot_be_had(words: Words) -> None:
    with pytest.raises(SampleError, match="raised LookupError for sample '': no word; mend"):
        IndexedDataset(words).__getitems__(["a", "", "b"])


def test_a_subset_names_its_own_index() -> None:
    subset = Subset(Documents(4), [0, 1, 9])
    with pytest.raises(SampleError, match="IndexError for sample 2"):
        IndexedDataset(subset).__getitems__([0, 1, 2])


def test_a_batch_that_lacks_a_sample_is_refused() -> None:
    with pytest.raises(SampleError, match=r"one of the samples \['a', 'b'\]"):
        IndexedDataset(InBatches(whole=False)).__getitems__(["a", "b"])


def collate(*, packed: bool, indexed: bool = True, max_tokens: int = 512) -> ChunkCollate:
    policy = TokenBudget(max_tokens)
    return ChunkCollate(measure=Measure(), policy=policy, indexed=indexed, packed=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_a_chunk_is_measured_and_whole(packed: bool) -> None:
    items = IndexedDataset(Documents(9, prompts=True)).__getitems__([4, 2, 8])
    worker = collate(packed=packed)
    chunk = worker(items)
    samples = Reader().unpack(chunk.payload) if packed else chunk.payload
    assert isinstance(chunk.payload, Packed) == packed
    assert chunk.columns.dtype == np.int64
    for (index, sample), own, (length, supervised, patches) in zip(items, samples, chunk.columns):
        assert own["identity"] == index
        assert torch.equal(own["labels"], sample["labels"])
        assert length == len(sample["input_ids"])
        assert supervised == int((sample["labels"][1:] != -100).sum())
        assert patches == 0


@pytest.mark.parametrize(
    ("indexed", "name"), [(True, "sample 'long'"), (False, "sample number 3 of its worker")]
)
def test_a_sample_over_the_limit_is_refused_by_name(indexed: bool, name: str) -> None:
    chunks = collate(packed=False, indexed=indexed, max_tokens=8)
    short, long = {"input_ids": [1] * 8}, {"input_ids": [1] * 9}
    chunks([("a", short), ("b", short)] if indexed else [short, short])
    with pytest.raises(SampleError, match=f"{name} has 9 tokens, over max_tokens=8"):
        chunks([("c", short), ("long", long)] if indexed else [short, long])


def test_numbers_of_unindexed_samples_run_on() -> None:
    chunks = collate(packed=False, indexed=False)
    for _ in range(3):
        chunks([[1, 2]] * 5)
    with pytest.raises(SampleError, match="sample number 16 of its worker has length 0"):
        chunks([[1], []])
