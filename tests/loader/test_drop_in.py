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
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchDataLoader

import evenstep
from documents import Documents
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


def mix(samples: list[Record]) -> Record:
    """Labels as fractions, as mixed samples have them."""
    labels = torch.nn.functional.one_hot(torch.tensor([s["label"] for s in samples]), 10).float()
    return {
        "pixels": torch.stack([s["pixels"] for s in samples]),
        "labels": labels.lerp(labels, 0.5),
    }


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


class Numbers(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


def chain() -> Any:
    return ChainDataset([Numbers(5), Numbers(6)])


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"dataset": list(range(COUNT))},
    "range": lambda: {"dataset": range(COUNT)},
    "dataset, a tensor": lambda: {"dataset": torch.arange(float(COUNT))},
    "TensorDataset": lambda: {
        "dataset": TensorDataset(torch.rand(COUNT, 2, generator=seeded()), torch.ones(COUNT))
    },
    "Subset": lambda: {"dataset": Subset(Mapped(integer), [5, 3, 3, 20])},  # type: ignore[arg-type]
    "ConcatDataset": lambda: {"dataset": ConcatDataset([Mapped(integer), Mapped(integer)])},  # type: ignore[list-item]
    "StackDataset": lambda: {"dataset": StackDataset(a=Mapped(integer), b=Mapped(text))},  # type: ignore[arg-type]
    "no samples": lambda: {"dataset": []},
    "iterable": lambda: {"dataset": Numbers(COUNT), "batch_size": 1},
    "iterable, dropped": lambda: {"dataset": Numbers(COUNT), "drop_last": True},
    "chain": lambda: {"dataset": chain(), "batch_size": 1},
    "chain, dropped": lambda: {"dataset": chain(), "drop_last": True},
    "mixed labels": lambda: {"dataset": Mapped(labelled), "collate_fn": mix},
    "one by one": lambda: {"batch_size": 1},
    "drop_last": lambda: {"drop_last": True},
    "larger, dropped": lambda: {"batch_size": 50, "drop_last": True},
    "shuffle=None": lambda: {"shuffle": None},
    "any iterable as sampler": lambda: {"sampler": range(2, 12)},
    "sampler with replacement": lambda: {
        "sampler": RandomSampler(range(COUNT), True, 40, generator=seeded())
    },
    "batch_sampler": lambda: {
        "batch_sampler": BatchSampler(SequentialSampler(range(10)), 3, False)
    },
    "batch_sampler, dropping": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(10), generator=seeded()), 3, True)
    },
    **{kind: lambda make=make: {"dataset": Mapped(make)} for kind, make in KINDS.items()},  # type: ignore[misc]
}


def batches(loader: Any) -> list[Any]:
    """Those of one pass, without what evenstep puts into mappings."""
    return [batch for batch, _ in loader.steps()] if hasattr(loader, "steps") else list(loader)


def assert_same_batches(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs)
    made, expected = batches(ours), batches(theirs)
    assert len(made) == len(expected)
    assert all(map(same, made, expected))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_samples_of_every_kind_and_every_dataset_and_argument(name: str) -> None:
    """No sample needs a length or a label."""
    loaders = []
    for kind in (evenstep.DataLoader, TorchDataLoader):
        options = {"dataset": Mapped(pair), **ARGUMENTS[name]()}
        if "batch_sampler" not in options:
            options.setdefault("batch_size", 4)
        loaders.append(kind(**options))
    assert_same_batches(*loaders)


def test_arguments_by_position_are_torchs() -> None:
    positional = (Mapped(pair), 4, False, [7, 7, 1], None, 0, None, False, True, 0, *[None] * 3)
    assert_same_batches(evenstep.DataLoader(*positional), TorchDataLoader(*positional))


def test_a_sample_counts_as_one_where_nothing_is_known_of_it() -> None:
    steps = [step for _, step in evenstep.DataLoader(Mapped(pair), batch_size=4).steps()]
    assert [step.tokens for step in steps] == [step.supervised_tokens for step in steps]
    assert [step.tokens for step in steps] == [4, 4, 4, 4, 4, 3]
    counted = evenstep.DataLoader(Mapped(masked), batch_size=2)
    assert [step.supervised_tokens for _, step in counted.steps()] == [4] * 12


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
    loader = evenstep.DataLoader(Started(), memory=evenstep.Memory(chunk_size=4), **options)
    indices, starts, workers = map(torch.cat, zip(*batches(loader)))
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


# Wrapped loaders of torch


BUDGET = evenstep.TokenBudget(512)
SUBSET = SubsetRandomSampler([3, 5, 7])


class Pairs:
    def __iter__(self):
        return iter([[9, 1], [4, 4]])

    def __len__(self):
        return 2


def indices(loader: evenstep.DataLoader) -> list[int]:
    return sorted(index for _, step in loader.steps() for index in step.indices or ())


def test_everything_a_torch_loader_has_is_taken_over() -> None:
    loader = TorchDataLoader(
        Documents(20),
        batch_size=4,
        num_workers=2,
        collate_fn=mix,
        timeout=30,
        worker_init_fn=print,
        prefetch_factor=3,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    wrapped = evenstep.wrap(loader, policy=BUDGET)
    assert wrapped.dataset is loader.dataset
    assert wrapped.collate_fn is mix
    assert (wrapped.num_workers, wrapped.persistent_workers) == (2, True)


def test_a_stock_order_is_drawn_by_evenstep_so_that_it_can_be_sharded() -> None:
    wrapped = evenstep.wrap(TorchDataLoader(Documents(20), shuffle=True), policy=BUDGET, seed=5)
    assert wrapped.sampler is None
    assert wrapped.shuffle
    assert indices(wrapped) == list(range(20))
    assert not evenstep.wrap(TorchDataLoader(Documents(20)), policy=BUDGET).shuffle


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sampler": SUBSET}, [3, 5, 7]),
        ({"batch_sampler": Pairs()}, [1, 4, 4, 9]),
        ({"batch_sampler": BatchSampler([8, 6, 2], 2, False)}, [2, 6, 8]),
    ],
)
def test_the_indices_of_a_sampler_of_the_user_are_kept(
    options: dict[str, Any], expected: list[int]
) -> None:
    wrapped = evenstep.wrap(TorchDataLoader(Documents(20), **options), policy=BUDGET)
    assert indices(wrapped) == expected
    # torch's own collate function gives way to padding.
    assert isinstance(wrapped.collate_fn, evenstep.PadCollator)
