"""torch's DataLoader is the reference: with `FixedBatch` come the very batches that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import (
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import evenstep
from documents import Documents

COUNT = 41
DOCUMENTS = Documents(COUNT, prompts=True)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(DOCUMENTS),
    "random": lambda: RandomSampler(DOCUMENTS, generator=seeded()),
    "with replacement": lambda: RandomSampler(
        DOCUMENTS, replacement=True, num_samples=60, generator=seeded()
    ),
    "subset": lambda: SubsetRandomSampler([3, 1, 40, 8, 8, 9, 22], generator=seeded()),
    "weighted": lambda: WeightedRandomSampler(
        torch.arange(1.0, COUNT + 1).tolist(), 50, generator=seeded()
    ),
    "rank 0 of 3": lambda: DistributedSampler(DOCUMENTS, 3, 0, seed=5),
    "rank 2 of 3": lambda: DistributedSampler(DOCUMENTS, 3, 2, seed=5),
    "rank 2 of 3, dropping": lambda: DistributedSampler(DOCUMENTS, 3, 2, drop_last=True),
    "list": lambda: [5, 4, 3, 2, 1, 0],
}


def same(ours: Any, theirs: Any) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in theirs
    )


def assert_same_batches(ours: evenstep.DataLoader, theirs: Any, *, times: int = 1) -> None:
    for _ in range(times):
        made = [batch for batch, _ in ours.steps()]
        expected = list(theirs)
        assert len(made) == len(expected) == len(ours) == len(theirs)
        assert all(map(same, made, expected))


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 0), (4, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler(sampler: str, batch_size: int, drop_last: bool, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    collate = evenstep.PadCollator()
    theirs = TorchDataLoader(DOCUMENTS, sampler=SAMPLERS[sampler](), collate_fn=collate, **options)
    ours = evenstep.DataLoader(
        DOCUMENTS, sampler=SAMPLERS[sampler](), num_workers=workers, **options
    )
    # evenstep calls set_epoch of a sampler for every epoch; with torch the loop has to.
    once = workers or hasattr(ours.sampler, "set_epoch")
    assert_same_batches(ours, theirs, times=1 if once else 2)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("seed", [0, 9])
def test_the_built_in_order_is_that_of_a_distributed_sampler(
    shuffle: bool, drop_last: bool, seed: int
) -> None:
    sampler = DistributedSampler(DOCUMENTS, 1, 0, shuffle=shuffle, seed=seed, drop_last=drop_last)
    collate = evenstep.PadCollator()
    theirs = TorchDataLoader(
        DOCUMENTS, batch_size=5, sampler=sampler, drop_last=drop_last, collate_fn=collate
    )
    ours = evenstep.DataLoader(
        DOCUMENTS, batch_size=5, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert_same_batches(ours, theirs)


def test_a_wrapped_batch_sampler_of_equal_batches() -> None:
    batches = [[7, 1, 4], [9, 9, 30], [2, 5, 40]]
    theirs = TorchDataLoader(DOCUMENTS, batch_sampler=batches, collate_fn=evenstep.PadCollator())
    ours = evenstep.wrap(theirs, policy=evenstep.FixedBatch(3))
    assert all(map(same, [batch for batch, _ in ours.steps()], list(theirs)))


class Sharded(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, COUNT, step):
            yield DOCUMENTS[index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_dataset(workers: int, drop_last: bool) -> None:
    options: dict[str, Any] = {"batch_size": 6, "drop_last": drop_last, "num_workers": workers}
    theirs = TorchDataLoader(Sharded(), collate_fn=evenstep.PadCollator(), **options)
    made = [batch for batch, _ in evenstep.DataLoader(Sharded(), **options).steps()]
    expected = list(theirs)
    assert len(made) == len(expected)
    assert all(map(same, made, expected))


def initialise(worker: int) -> None:
    """Splits a dataset among workers from outside, as torch's documentation does."""
    info = get_worker_info()
    info.dataset.indices = info.dataset.indices[worker :: info.num_workers]


class Split(IterableDataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.indices = list(range(COUNT))

    def __iter__(self) -> Any:
        return (DOCUMENTS[index] for index in self.indices)


def test_worker_init_fn_finds_and_changes_the_dataset() -> None:
    loader = evenstep.DataLoader(Split(), batch_size=4, num_workers=2, worker_init_fn=initialise)
    seen = [identity for batch, _ in loader.steps() for identity in batch["identity"].tolist()]
    assert sorted(seen) == list(range(COUNT))


def test_a_generator_is_a_seed() -> None:
    def order(**options: Any) -> list[Any]:
        loader = evenstep.DataLoader(DOCUMENTS, batch_size=5, shuffle=True, **options)
        return [step.indices for _, step in loader.steps()]

    generator = torch.Generator().manual_seed(8)
    assert order(generator=generator) == order(seed=8) != order()
    theirs = TorchDataLoader(DOCUMENTS, shuffle=True, generator=generator)
    wrapped = evenstep.wrap(theirs, policy=evenstep.FixedBatch(5))
    assert [step.indices for _, step in wrapped.steps()] == order(seed=8)
    with pytest.raises(evenstep.ConfigurationError, match="seed=3 contradicts a generator"):
        order(seed=3, generator=generator)
