"""torch's DataLoader beside evenstep's, given the same arguments: the same batches in the same
order, the same attributes, errors of the same types."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchDataLoader

import evenstep
from evenstep.errors import CollateError, ConfigurationError, EvenstepError
from same_values import same

COUNT = 23
Point = namedtuple("Point", ["place", "name"])
Record = dict[str, Any]


class Keyed(dict[str, Any]):
    """A mapping of the user's own."""


class Mapped:
    """A map-style dataset of samples that a function makes; no `torch.utils.data.Dataset`."""

    def __init__(self, make: Callable[[int], Any], count: int = COUNT) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def picture(index: int) -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 2, 2) + index


def integer(index: int) -> Any:
    return index


def text(index: int) -> Any:
    return f"sample {index}"


def pair(index: int) -> Any:
    return picture(index), index % 10


def nested(index: int) -> Any:
    return {"image": picture(index), "about": {"size": (index, 2.5), "words": [str(index), "x"]}}


def labelled(index: int) -> Any:
    return {"pixels": picture(index), "label": index % 10}


def masked(index: int) -> Any:
    return {"pixels": picture(index), "labels": torch.full((2, 2), -100 if index % 2 else 1)}


KINDS: dict[str, Callable[[int], Any]] = {
    "tensor": picture,
    "empty tensor": lambda index: torch.empty(0),
    "scalar tensor": lambda index: torch.tensor(index, dtype=torch.int16),
    "array": lambda index: np.ones((2, 3)) * index,
    "NumPy scalar": np.float16,
    "integer": integer,
    "fraction": lambda index: index / 7,
    "text": text,
    "bytes": lambda index: bytes([index]),
    "pair": pair,
    "nested": nested,
    "labelled": labelled,
    "masked": masked,
    "strange labels": lambda index: {
        "pixels": picture(index),
        "labels": {"boxes": torch.ones(4), "kind": "cat"},
    },
    "namedtuple": lambda index: Point(place=(index, -index), name=str(index)),
    "own mapping": lambda index: Keyed(a=index, b=picture(index)),
}


def batches(loader: Any) -> list[Any]:
    """Those of one pass, without what evenstep puts into mappings."""
    return [batch for batch, _ in loader.steps()] if hasattr(loader, "steps") else list(loader)


def assert_same_batches(ours: Any, theirs: Any) -> None:
    made, expected = batches(ours), batches(theirs)
    assert len(made) == len(expected)
    assert all(map(same, made, expected))


# Samples


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_any_kind_needs_neither_length_nor_label(kind: str) -> None:
    dataset = Mapped(KINDS[kind])
    ours = evenstep.DataLoader(dataset, batch_size=4)
    assert_same_batches(ours, TorchDataLoader(dataset, batch_size=4))


def any_kind(index: int) -> Any:
    return [make(index) for make in KINDS.values()]


def test_samples_of_all_kinds_from_two_workers() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    with_workers = evenstep.DataLoader(Mapped(any_kind), **options)
    theirs = TorchDataLoader(Mapped(any_kind), batch_size=4)
    for _ in range(2):
        assert_same_batches(with_workers, theirs)
    with_workers.close()


def mix(samples: list[Record]) -> Record:
    """Labels as fractions, as mixed samples have them."""
    labels = torch.nn.functional.one_hot(torch.tensor([s["label"] for s in samples]), 10).float()
    return {
        "pixels": torch.stack([s["pixels"] for s in samples]),
        "labels": labels.lerp(labels, 0.5),
    }


def test_a_collate_function_may_mix_labels() -> None:
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": mix}
    ours = evenstep.DataLoader(Mapped(labelled), **options)
    assert_same_batches(ours, TorchDataLoader(Mapped(labelled), **options))


def test_what_torch_cannot_collate_is_an_error_that_says_so() -> None:
    ragged = [torch.ones(1 + i) for i in range(4)]
    with pytest.raises(RuntimeError, match="equal size"):
        list(TorchDataLoader(ragged, batch_size=2))
    with pytest.raises(CollateError, match="equal size"):
        list(evenstep.DataLoader(ragged, batch_size=2))
    padding = evenstep.DataLoader(ragged, batch_size=2, collate_fn=evenstep.PadCollator())
    assert [list(batch.shape) for batch in padding] == [[2, 2], [2, 4]]


def test_a_sample_counts_as_one_where_nothing_is_known_of_it() -> None:
    steps = [step for _, step in evenstep.DataLoader(Mapped(pair), batch_size=4).steps()]
    assert [step.tokens for step in steps] == [step.supervised_tokens for step in steps]
    assert [step.tokens for step in steps] == [4, 4, 4, 4, 4, 3]
    counted = evenstep.DataLoader(Mapped(masked), batch_size=2)
    assert [step.supervised_tokens for _, step in counted.steps()] == [4] * 12


# Datasets


DATASETS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(range(COUNT)),
    "range": lambda: range(COUNT),
    "tensor": lambda: torch.arange(float(COUNT)),
    "TensorDataset": lambda: TensorDataset(
        torch.rand(COUNT, 2, generator=seeded()), torch.ones(23)
    ),
    "Subset": lambda: Subset(Mapped(integer), [5, 3, 3, 20]),  # type: ignore[arg-type]
    "ConcatDataset": lambda: ConcatDataset([Mapped(integer), Mapped(integer)]),  # type: ignore[list-item]
    "StackDataset": lambda: StackDataset(a=Mapped(integer), b=Mapped(text)),  # type: ignore[arg-type]
    "empty": list,
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_dataset(dataset: str) -> None:
    ours = evenstep.DataLoader(DATASETS[dataset](), batch_size=3)
    theirs = TorchDataLoader(DATASETS[dataset](), batch_size=3)
    assert len(ours) == len(theirs)
    assert_same_batches(ours, theirs)


class Numbers(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (4, True)])
def test_an_iterable_dataset_and_its_length(batch_size: int, drop_last: bool) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    for dataset in (Numbers(COUNT), ChainDataset([Numbers(5), Numbers(6)])):
        ours, theirs = evenstep.DataLoader(dataset, **options), TorchDataLoader(dataset, **options)
        assert_same_batches(ours, theirs)
        assert len(ours) == len(theirs)


# Arguments


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "one by one": lambda: {"batch_size": 1},
    "drop_last": lambda: {"batch_size": 4, "drop_last": True},
    "larger, dropped": lambda: {"batch_size": 50, "drop_last": True},
    "shuffle=None": lambda: {"batch_size": 4, "shuffle": None},
    "any iterable as sampler": lambda: {"batch_size": 4, "sampler": range(2, 12)},
    "sampler with replacement": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(range(COUNT), True, 40, generator=seeded()),
    },
    "weighted sampler": lambda: {
        "batch_size": 4,
        "sampler": WeightedRandomSampler([1.0] * COUNT, 9, generator=seeded()),
    },
    "batch_sampler": lambda: {
        "batch_sampler": BatchSampler(SequentialSampler(range(10)), 3, False)
    },
    "batch_sampler, dropping": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(10), generator=seeded()), 3, True)
    },
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_every_argument(arguments: str) -> None:
    ours = evenstep.DataLoader(Mapped(pair), **ARGUMENTS[arguments]())
    theirs = TorchDataLoader(Mapped(pair), **ARGUMENTS[arguments]())
    assert len(ours) == len(theirs)
    assert_same_batches(ours, theirs)


def test_arguments_by_position_are_torchs() -> None:
    positional = (Mapped(pair), 4, False, [7, 7, 1], None, 0, None, False, True, 0, *[None] * 3)
    assert_same_batches(evenstep.DataLoader(*positional), TorchDataLoader(*positional))


def note_worker(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert (info.id, info.num_workers) == (worker, 2)
    assert isinstance(info.dataset, Started)
    assert len(info.dataset) == COUNT
    assert info.dataset[7] == (7, 0, worker)
    info.dataset.start = 100 * (1 + worker)  # as torch's documentation splits a dataset


class Started(Mapped):
    def __init__(self) -> None:
        super().__init__(integer)
        self.start = 0

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, self.start, -1 if info is None else info.id


def test_arguments_of_workers() -> None:
    options: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 2,
        "worker_init_fn": note_worker,
        "prefetch_factor": 3,
        "timeout": 60,
        "multiprocessing_context": "fork",
    }
    indices, starts, workers = map(
        torch.cat,
        zip(
            *batches(
                evenstep.DataLoader(Started(), memory=evenstep.Memory(chunk_size=4), **options)
            )
        ),
    )
    theirs = [torch.cat(column) for column in zip(*TorchDataLoader(Started(), **options))]
    assert same([indices, starts, workers], theirs)  # the workers take turns as torch's do
    assert set(zip(starts.tolist(), workers.tolist())) == {(100, 0), (200, 1)}
    alone = batches(evenstep.DataLoader(Started(), batch_size=4))
    assert {worker for batch in alone for worker in batch[2].tolist()} == {-1}
    assert get_worker_info() is None


def test_shuffling_is_that_of_a_distributed_sampler() -> None:
    sampler = DistributedSampler(range(COUNT), 1, 0, seed=9)
    ours = evenstep.DataLoader(
        range(COUNT),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(9),
    )
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert_same_batches(ours, TorchDataLoader(range(COUNT), batch_size=4, sampler=sampler))
    ours.close()


# What is refused


def a_batch_sampler() -> Any:
    return BatchSampler(SequentialSampler(range(COUNT)), 3, False)


REFUSED: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"num_workers": "2"},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "bad", "num_workers": 1},
    {"multiprocessing_context": object(), "num_workers": 1},
    {"sampler": range(3), "shuffle": True},
    {"batch_size": 0},
    {"batch_size": 2.5},
    {"batch_size": True},
    {"batch_size": None, "drop_last": True},
    {"batch_sampler": a_batch_sampler(), "batch_size": 4},
    {"batch_sampler": a_batch_sampler(), "batch_size": 1, "shuffle": True},
    {"batch_sampler": a_batch_sampler(), "batch_size": 1, "drop_last": True},
    {"dataset": Numbers(9), "shuffle": True},
    {"dataset": Numbers(9), "sampler": range(3)},
    {"dataset": Numbers(9), "batch_size": 1, "batch_sampler": a_batch_sampler()},
]


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_torch_refuses_is_refused_with_an_error_of_its_type(arguments: dict[str, Any]) -> None:
    given = {"dataset": range(COUNT), "batch_size": 2, **arguments}
    with pytest.raises(Exception) as theirs:
        TorchDataLoader(**given)
    with pytest.raises(type(theirs.value)) as ours:
        evenstep.DataLoader(**given)
    assert isinstance(ours.value, ConfigurationError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "no policy"),
        ({"batch_size": None}, "no policy"),
        ({"batch_size": 2, "in_order": False, "num_workers": 2}, "in_order=False"),
        ({"batch_sampler": [[0, 1], [2]]}, "batch_sampler of type list forms batches itself"),
        ({"batch_size": 2, "sampler": [[0, 1], [2]]}, r"here is \[0, 1\]; pass .* batch_sampler="),
        ({"batch_size": 2, "sampler": a_batch_sampler()}, "here is a BatchSampler; pass"),
    ],
)
def test_what_only_evenstep_refuses_is_a_value_error_that_says_why(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        evenstep.DataLoader(range(COUNT), **arguments)
    assert isinstance(error.value, EvenstepError)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_what_an_epoch_depends_on_cannot_be_set_later(name: str) -> None:
    for loader in (
        TorchDataLoader(range(COUNT), batch_size=2),
        evenstep.DataLoader(range(COUNT), batch_size=2),
    ):
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, 3)
