"""Samplers and batch samplers on several ranks: each row on one rank, or an error, or a warning."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from faults import listen
from ranks import Rank, run_all
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import evenstep
from documents import Documents
from evenstep.errors import EvenstepError, MismatchError, PeerError

ROWS = 60
EVEN = evenstep.Even(max_tokens=1024)


class Batches:
    """A user's batch sampler, which knows of no ranks, and shuffles by the epoch."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.epoch, self.drawn = seed, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return ROWS // 4

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn += 1
        rows = list(range(ROWS))
        random.Random(self.seed + 100 * self.epoch).shuffle(rows)
        return iter([rows[i : i + 4] for i in range(0, ROWS, 4)])


class Pairs(BatchSampler):
    """Forms batches by an ``__iter__`` of its own, of the rows of a sampler."""

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self.sampler)
        while pair := [*itertools.islice(rows, 2)]:
            yield pair


class Unsized:
    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Tensors(Unsized):
    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor(batch) for batch in self.batches)


class ByInt(Documents):
    """Takes anything that is a whole number."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return super().__getitem__(int(index))


def chain(lists: Iterable[list[Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(lists)]


LISTS = [list(range(i, i + 3)) for i in range(0, ROWS, 3)]


def plain(rank: Rank) -> Any:
    return BatchSampler(SequentialSampler(range(ROWS)), 4, False)


def shard(rank: Rank, batches: Any) -> Any:
    """As Accelerate makes them."""
    data_loader = pytest.importorskip("accelerate.data_loader")
    return data_loader.BatchSamplerShard(batches, rank.world_size, rank.rank)


def skipping(batches: Any) -> Any:
    data_loader = pytest.importorskip("accelerate.data_loader")
    return data_loader.SkipBatchSampler(batches, skip_batches=0)


def distributed(rank: Rank) -> Any:
    return DistributedSampler(range(ROWS), rank.world_size, rank.rank)


BATCH_SAMPLERS: dict[str, Callable[[Rank], Any]] = {
    "list": lambda rank: LISTS,
    "tensors": lambda rank: Tensors(LISTS),
    "class": lambda rank: Batches(),
    "without a length": lambda rank: Unsized(LISTS),
    "plain": plain,
    "subclass with an order": lambda rank: Pairs(SequentialSampler(range(ROWS)), 4, True),
    "distributed inside a subclass": lambda rank: Pairs(distributed(rank), 4, True),
    "accelerate": lambda rank: shard(rank, plain(rank)),
    "accelerate, twice": lambda rank: shard(rank, shard(rank, Batches())),
    "accelerate, a shard inside": lambda rank: skipping(shard(rank, LISTS)),
}


def rows_of(loader: evenstep.DataLoader, epochs: int = 1) -> list[list[int]]:
    """Rows of this rank, by epoch: as their documents say, not their indices."""
    found = []
    for _ in range(epochs):
        found.append([int(i) for batch in loader for i in batch["identity"]])
    loader.close()
    return found


def through(way: str, rank: Rank, make: Callable[[Rank], Any]) -> evenstep.DataLoader:
    torch.manual_seed(3)
    samplers = make(rank)
    if way == "argument":
        return evenstep.DataLoader(ByInt(ROWS), batch_sampler=samplers, policy=EVEN)
    theirs = TorchDataLoader(ByInt(ROWS), batch_sampler=samplers)
    return evenstep.wrap(theirs, policy=evenstep.FixedBatch(4))


def all_rows(rank: Rank) -> dict[Any, Any]:
    """Rows of this rank, by batch sampler and way; and by what warnings of other rows advise."""
    log = listen()
    found: dict[Any, Any] = {}
    for name, make in BATCH_SAMPLERS.items():
        for way in ("argument", "wrap"):
            (found[name, way],) = rows_of(through(way, rank, make))
    sampler = RandomSampler(range(ROWS), generator=seeded(1))
    every = itertools.islice(range(ROWS), rank.rank, None, rank.world_size)
    for name, options in {
        "shared": {"dataset": Documents(ROWS), "sampler": sampler, "shard_sampler": True},
        "split": {"dataset": Stream(lambda: texts(every))},
    }.items():
        (found[name],) = rows_of(evenstep.DataLoader(**options, policy=EVEN))
    return {"rows": found, "log": [*log]}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """[ranks] what came of each function, in one job of two ranks."""
    functions = (all_rows, orders_and_draws, differing, warned_of_same)
    folder = tmp_path_factory.mktemp("ranks")
    values = run_all(*functions, world_size=2, folder=folder, within=200)
    return {each.__name__: value for each, value in zip(functions, values)}


def test_each_row_comes_on_one_rank(found: dict[str, list[Any]]) -> None:
    pytest.importorskip("accelerate")
    ranks = found["all_rows"]
    for key in ranks[0]["rows"]:
        parts = [rank["rows"][key] for rank in ranks]
        assert sorted(chain(parts)) == list(range(ROWS)), key
        assert min(map(len, parts)) > ROWS // 4, key
    assert not [line for rank in ranks for line in rank["log"] if "same rows" in line]


def orders_and_draws(rank: Rank) -> Any:
    """What a batch sampler that shuffles by the epoch gives, and how often it is asked."""
    batches = Batches()
    loader = evenstep.DataLoader(
        Documents(ROWS), batch_sampler=batches, policy=evenstep.FixedBatch(4)
    )
    before = batches.drawn
    found = rows_of(loader, epochs=3)
    return before, found, batches.drawn


def test_a_batch_sampler_is_drawn_once_in_an_epoch_and_told_its_number(
    found: dict[str, list[Any]],
) -> None:
    ranks = found["orders_and_draws"]
    assert [(before, drawn) for before, _, drawn in ranks] == [(0, 3)] * 2
    for epoch in range(3):
        own = Batches()
        own.set_epoch(epoch)
        order = [row for batch in own for row in batch]
        for rank in range(2):
            assert ranks[rank][1][epoch] == order[rank::2]


# Orders that differ between ranks


def fail(make: Callable[[], evenstep.DataLoader]) -> tuple[str, str]:
    try:
        loader = make()
    except EvenstepError as error:
        return type(error).__name__, str(error)
    try:
        return "", f"{rows_of(loader)}"
    except (EvenstepError, PeerError) as error:
        return type(error).__name__, str(error)
    finally:
        loader.close()


class OfRank(Batches):
    """Yields the batches of one rank, in a way that nobody can see."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(LISTS[torch.distributed.get_rank() :: 2])


def differing(rank: Rank) -> dict[str, tuple[str, str]]:
    torch.manual_seed(rank.rank)
    loaders = {
        "batches": {"batch_sampler": Batches(seed=rank.rank)},
        "without a length": {"batch_sampler": Unsized(Batches(seed=rank.rank))},
        "random": {"sampler": RandomSampler(range(ROWS)), "shard_sampler": True},
        "own": {"batch_sampler": OfRank()},
        "own, as said": {"batch_sampler": OfRank(), "shard_sampler": False},
    }
    found = {
        name: fail(
            lambda options=options: evenstep.DataLoader(Documents(ROWS), policy=EVEN, **options)
        )
        for name, options in loaders.items()
    }
    theirs = TorchDataLoader(Documents(ROWS), batch_sampler=OfRank())
    wrapped = fail(lambda: evenstep.wrap(theirs, policy=EVEN, shard_sampler=False))
    return {**found, "own, wrapped": wrapped}


def test_ranks_that_share_an_order_have_the_same_one(found: dict[str, list[Any]]) -> None:
    ranks = found["differing"]
    for name in ("batches", "without a length", "random", "own"):
        for rank in ranks:
            kind, said = rank[name]
            assert kind == MismatchError.__name__, name
            assert "another order on rank 1 than on rank 0" in said
            assert "shard_sampler=False" in said
    for name in ("own, as said", "own, wrapped"):  # as the error says
        assert [rank[name][0] for rank in ranks] == ["", ""]
        rows = [eval(rank[name][1])[0] for rank in ranks]
        assert sorted(chain(rows)) == list(range(ROWS))


# Ranks that train on the same rows


class Stream(IterableDataset):
    def __init__(self, samples: Callable[[], Iterator[Any]]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return self.samples()


def texts(rows: Any) -> Iterator[Any]:
    return ({"input_ids": [row + 1] * (3 + row % 7), "identity": row} for row in rows)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Shuffled:
    """Of no ranks, and shuffled differently on each."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(ROWS).tolist())


def stock(sampler: Any) -> Any:
    return lambda rank: {"dataset": Documents(ROWS), "sampler": sampler(rank)}


def stream(samples: Callable[[Rank], Any]) -> Any:
    return lambda rank: {"dataset": Stream(lambda: texts(samples(rank)))}


SAME: dict[str, tuple[Callable[[Rank], dict[str, Any]], str]] = {
    "random, one seed": (
        stock(lambda rank: RandomSampler(range(ROWS), generator=seeded(1))),
        "RandomSampler",
    ),
    "random over many rows, seeds of ranks": (
        lambda rank: {
            "dataset": Documents(20_000),
            "sampler": RandomSampler(range(20_000), generator=seeded(rank.rank)),
        },
        "RandomSampler",
    ),
    "class": (stock(lambda rank: Shuffled()), "Shuffled"),
    "stream": (stream(lambda rank: range(ROWS)), "Stream"),
    "stream, workers": (
        lambda rank: {"dataset": Split(), "num_workers": 2, "multiprocessing_context": "fork"},
        "Split",
    ),
}


class Split(IterableDataset):
    """Shared by workers, not by ranks."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return texts(range(worker.id, ROWS, worker.num_workers))


def warned_of_same(rank: Rank) -> Any:
    log, found = listen(), {}
    for name, (options, _) in SAME.items():
        loader = evenstep.DataLoader(**{"policy": EVEN, **options(rank)})
        log.clear()
        for _ in range(2):
            for _ in zip(range(3), loader):
                pass
        loader.close()
        found[name] = [line for line in log if "same rows" in line]
    return found


def test_ranks_that_train_on_the_same_rows_are_warned_of_once(found: dict[str, list[Any]]) -> None:
    first, second = found["warned_of_same"]
    for name, (_, kind) in SAME.items():
        (line,) = first[name]
        assert "ranks 0, 1 train on the same rows" in line
        assert f" {kind} yields the same to each" in line
        assert not second[name]
