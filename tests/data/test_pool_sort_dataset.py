"""PoolSortDataset: like samples at like times in every rank and worker, and exact resume."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import operator
import pickle
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

import evenstep
from evenstep.data.pool_pass import sample_key
from evenstep.data.pool_sort_dataset import PoolSortDataset
from evenstep.errors import ConfigurationError, MismatchError, SampleError


def lengths_of(count: int, seed: int = 0) -> list[int]:
    draw = np.random.default_rng(seed)
    return np.exp(draw.normal(3, 0.8, count)).astype(int).clip(1, 500).tolist()


def sample(number: int, length: int) -> dict[str, Any]:
    return {"number": number, "length": length}


def numbers(samples: Any) -> list[int]:
    return [one["number"] for one in samples]


class Plain(IterableDataset):
    """Cannot say where it is. A negative length is that of a sample that must not be read."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        return (sample(number, length) for number, length in enumerate(self.lengths))

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class StatefulDataset(Plain):
    """Keeps its own place, and goes back to its beginning at its end only."""

    done = 0

    def __iter__(self) -> Iterator[Any]:
        while self.done < len(self.lengths):
            self.done += 1
            yield sample(self.done - 1, self.lengths[self.done - 1])
        self.done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class Savable(IterableDataset):
    """The shape of Megatron-Energon's datasets."""

    worker_config = "the configuration of workers"

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.done = lengths, 0

    def __iter__(self) -> Iterator[Any]:
        while self.done < len(self.lengths):
            self.done += 1
            yield sample(self.done - 1, self.lengths[self.done - 1])
        self.done = 0

    def save_state(self) -> dict[str, Any]:
        return {"__class__": "Savable", "done": self.done}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.done = state["done"]

    def reset_state_deep(self) -> None:
        self.done = 0

    def worker_has_samples(self) -> bool:
        return bool(self.lengths)

    def len_worker(self, worker_idx: int | None = None) -> int:
        return len(self.lengths) // 2

    def len_rank(self) -> int:
        return len(self.lengths)

    def __len__(self) -> int:
        return self.len_rank()

    def can_restore_sample(self) -> bool:
        return True

    def assert_can_restore(self) -> None:
        assert self.can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        return sample(restore_key, self.lengths[restore_key])

    def config(self) -> dict[str, Any]:
        return {"type": "Savable"}


class CountingIterator:
    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.done = lengths, 0

    def __iter__(self) -> CountingIterator:
        return self

    def __next__(self) -> Any:
        if self.done == len(self.lengths):
            raise StopIteration
        self.done += 1
        return sample(self.done - 1, self.lengths[self.done - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


class ByIterator(Plain):
    def __iter__(self) -> Iterator[Any]:
        return CountingIterator(self.lengths)


class MapStyle(Dataset):
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return sample(index, self.lengths[index])


def factory(lengths: list[int]) -> Any:
    return lambda: iter(Plain(lengths))


def loader_of(lengths: list[int]) -> Any:
    return DataLoader(Plain(lengths), batch_size=None)


UPSTREAMS = [Plain, StatefulDataset, ByIterator, Savable, MapStyle, factory, loader_of]
POOLS = st.integers(1, 12)
COUNTS = st.integers(0, 50)
WARM_UPS = st.sampled_from([{}, {"initial_pool_size": 1, "warmup_pools": 3}])


# The order


@pytest.mark.parametrize("upstream", UPSTREAMS)
@settings(max_examples=10, deadline=None)
@given(COUNTS, POOLS, WARM_UPS)
def test_every_sample_comes_once_whatever_yields_them(
    upstream: Any, count: int, pool: int, warm_up: dict[str, int]
) -> None:
    dataset = PoolSortDataset(upstream(lengths_of(count)), pool, **warm_up)
    for _ in range(2):
        assert sorted(numbers(dataset)) == list(range(count))


@given(st.integers(1, 60), st.integers(1, 12), st.booleans(), st.integers(0, 9))
def test_ranks_whose_pools_hold_equal_lengths_yield_equal_lengths_also_in_the_tail(
    count: int, pool: int, ascending: bool, seed: int
) -> None:
    lengths, draw = lengths_of(count, seed), np.random.default_rng(seed)
    other = [one for k in range(0, count, pool) for one in draw.permutation(lengths[k : k + pool])]
    one, another = (
        [s["length"] for s in PoolSortDataset(Plain(own), pool, ascending=ascending, seed=seed)]
        for own in (lengths, other)
    )
    assert one == another


def test_orders_differ_between_pools_epochs_and_seeds_and_upstream_is_told_the_epoch() -> None:
    def orders(seed: int, epoch: int) -> list[tuple[int, ...]]:
        upstream = Plain(list(range(1, 61)))
        dataset = PoolSortDataset(upstream, 20, seed=seed)
        dataset.set_epoch(epoch)
        assert upstream.epochs == [epoch]
        got = [number % 20 for number in numbers(dataset)]
        return [tuple(got[k : k + 20]) for k in (0, 20, 40)]

    made = [order for key in ((0, 0), (0, 1), (1, 0)) for order in orders(*key)]
    assert len(set(made)) == 9


def test_pools_grow_from_the_initial_size_to_the_full_one() -> None:
    dataset = PoolSortDataset(Plain([1] * 99), 10, initial_pool_size=2, warmup_pools=4)
    assert [dataset.size_of(pool) for pool in range(6)] == [2, 4, 6, 8, 10, 10]
    read: list[int] = []
    watched = (read.append(n) or sample(n, 1) for n in range(99))
    iterator = iter(PoolSortDataset(lambda: watched, 10, initial_pool_size=2, warmup_pools=4))
    next(iterator)
    assert read == [0, 1]


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_pass_that_was_left_spoils_no_later_one(upstream: Any) -> None:
    dataset = PoolSortDataset(upstream(lengths_of(40)), 8)
    whole = numbers(dataset)
    assert numbers(itertools.islice(dataset, 13)) == whole[:13]
    assert numbers(dataset) == whole


# Resume


@pytest.mark.parametrize(
    ("upstream", "level"),
    [
        *((upstream, "dataset") for upstream in UPSTREAMS),
        *((upstream, "iterator") for upstream in (Plain, ByIterator, MapStyle)),
        *((upstream, "energon") for upstream in (Savable, StatefulDataset)),
    ],
)
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 24), POOLS, WARM_UPS, st.integers(0, 3))
def test_resume_after_any_sample_yields_the_rest_in_the_very_order(
    upstream: Any, level: str, count: int, pool: int, warm_up: dict[str, int], epoch: int
) -> None:
    lengths = lengths_of(count)

    def made() -> PoolSortDataset:
        return PoolSortDataset(upstream(lengths), pool, seed=5, **warm_up)

    first = made()
    first.set_epoch(epoch)
    whole = numbers(first)
    iterator = iter(first)
    for done in range(count + 1):
        owner = iterator if level == "iterator" else first
        state = owner.save_state() if level == "energon" else owner.state_dict()
        state = json.loads(json.dumps(state))
        again = made()
        if not done:
            again.set_epoch(epoch)  # before the first sample there is no pass to resume
        if level == "iterator":
            resumed = iter(again)
            resumed.load_state_dict(state)
        elif level == "energon":
            again.restore_state(state)
            resumed = iter(again)
        else:
            again.load_state_dict(state)
            resumed = iter(again)
        assert numbers(resumed) == whole[done:]
        if done < count:
            assert next(iterator)["number"] == whole[done]


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_resumed_pass_can_be_stopped_and_resumed_again_and_the_next_is_whole(
    upstream: Any,
) -> None:
    whole = numbers(PoolSortDataset(upstream(lengths_of(40)), 8))
    got: list[int] = []
    state = None
    for stop in (3, 0, 8, 5, 11, 1, 99):
        dataset = PoolSortDataset(upstream(lengths_of(40)), 8)
        if state is not None:
            dataset.load_state_dict(state)
        got += numbers(itertools.islice(iter(dataset), stop))
        state = copy.deepcopy(dataset.state_dict())
    assert got == whole
    assert numbers(dataset) == whole


def test_upstream_that_can_say_where_it_is_is_not_read_again() -> None:
    dataset = PoolSortDataset(StatefulDataset(lengths_of(40)), 8)
    iterator = iter(dataset)
    for _ in range(20):
        next(iterator)
    state = dataset.state_dict()
    assert state["pass"]["upstream"] == {"of": "dataset", "count": 16, "state": {"done": 16}}
    assert state["pass"]["given"] == 4


def test_a_dataset_that_is_sent_to_a_worker_in_mid_pass_starts_from_the_beginning_there() -> None:
    dataset = PoolSortDataset(StatefulDataset(lengths_of(20)), 8)
    whole = numbers(dataset)
    next(iter(dataset))
    dataset = pickle.loads(pickle.dumps(dataset))
    assert numbers(dataset) == whole
    next(iter(dataset))
    assert numbers(pickle.loads(pickle.dumps(dataset))) == whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 1}, "saved with seed=0, and this dataset has 1"),
        ({"pool_size": 9}, "saved with pool_size=8, and this dataset has 9"),
        ({"ascending": False}, "saved with ascending=True"),
    ],
)
def test_a_state_of_other_pools_is_refused(options: dict[str, Any], said: str) -> None:
    state = PoolSortDataset(Plain([1] * 9), 8).state_dict()
    with pytest.raises(MismatchError, match=said):
        PoolSortDataset(Plain([1] * 9), **{"pool_size": 8, **options}).load_state_dict(state)


def test_a_state_of_something_else_or_of_a_shrunken_dataset_is_refused() -> None:
    dataset = PoolSortDataset(Plain([1] * 30), 8)
    with pytest.raises(MismatchError, match="not a state of PoolSortDataset"):
        dataset.load_state_dict({"done": 3})
    iterator = iter(dataset)
    for _ in range(7):
        next(iterator)
    state = dataset.state_dict()
    shrunken = PoolSortDataset(Plain([1] * 5), 8)
    shrunken.load_state_dict(state)
    with pytest.raises(MismatchError, match="5 more samples where the state was saved after 7"):
        next(iter(shrunken))
    other = PoolSortDataset(ByIterator([1] * 30), 8)
    list(itertools.islice(iterator, 2))
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(MismatchError, match=r"kept by its count, and that of ByIterator .* iterat"):
        next(iter(other))


# In loaders


class Sharded(StatefulDataset):
    """Worker w of n has every n-th sample."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in itertools.islice(range(first, len(self.lengths), step), self.done, None):
            self.done += 1
            yield {"input_ids": torch.full((self.lengths[number],), number)}
        self.done = 0


def batches_of(loader: Any, most: int | None = None) -> list[list[int]]:
    return [
        [int(row[0]) for row in batch["input_ids"]]
        for batch, _ in itertools.islice(loader.steps(), most)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("upstream", [Sharded, MapStyle])
def test_exact_resume_in_evensteps_own_loader(upstream: Any, workers: int) -> None:
    def made() -> evenstep.DataLoader:
        source = upstream(lengths_of(60))
        if upstream is MapStyle:
            source = TokensOf(source)
        return evenstep.DataLoader(
            PoolSortDataset(source, 16, seed=3),
            policy=evenstep.FixedBatch(4),
            num_workers=workers,
            memory=evenstep.Memory(chunk_size=3, buffer_size=8),
        )

    loader = made()
    whole = batches_of(loader)
    assert sorted(functools.reduce(operator.iadd, whole, [])) == list(range(60))
    for done in (1, 6) if workers else range(1, len(whole)):
        assert batches_of(loader, done) == whole[:done]
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = made()
        resumed.load_state_dict(state)
        assert batches_of(resumed) == whole[done:]


class TokensOf(Dataset):
    def __init__(self, inner: MapStyle) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.full((self.inner.lengths[index],), index)}


def test_in_torchs_loader_ranks_with_equally_many_workers_stay_aligned() -> None:
    lengths = lengths_of(64)
    draw = np.random.default_rng(0)
    # Another rank: the same lengths in each pool of each worker, in another order.
    other = list(lengths)
    for worker, pool in itertools.product(range(2), range(4)):
        places = list(range(worker, 64, 2))[8 * pool : 8 * pool + 8]
        for place, length in zip(places, draw.permutation([lengths[p] for p in places])):
            other[place] = int(length)
    one, another = (
        [
            s["length"]
            for s in DataLoader(PoolSortDataset(MapStyle(own), 8), batch_size=None, num_workers=2)
        ]
        for own in (lengths, other)
    )
    assert one == another
    assert sorted(one) == sorted(lengths)


# Keys


@pytest.mark.parametrize(
    "one",
    [
        SimpleNamespace(total_len=7, tokens=[1]),
        SimpleNamespace(tokens=torch.zeros(7)),
        SimpleNamespace(input_ids=[1] * 7),
        {"total_len": torch.tensor(7)},
        {"length": 7, "input_ids": [1]},
        {"tokens": [1] * 7},
        {"input_ids": torch.zeros(7)},
        [1] * 7,
    ],
)
def test_a_samples_key_is_its_length_wherever_it_is_kept(one: Any) -> None:
    assert sample_key(one) == 7


@pytest.mark.parametrize(
    ("key_fn", "said"),
    [
        (None, "sample 1 of pool 0: a dict has no total_len, .* pass key_fn="),
        (lambda s: s["length"], "sample 1 of pool 0: key_fn .* raised KeyError"),
        (lambda s: "long", r"key_fn .* raised ValueError: .*; it must give a number"),
        (lambda s: float("nan"), "key_fn gave nan"),
    ],
)
def test_a_sample_without_a_key_is_named_with_the_remedy(key_fn: Any, said: str) -> None:
    samples = [sample(0, 3), {"image": 1}]
    with pytest.raises(SampleError, match=said):
        list(PoolSortDataset(samples, 8, key_fn))


def test_samples_are_sorted_by_what_the_key_function_gives() -> None:
    dataset = PoolSortDataset([5, 3, 9, 1], 4, lambda one: -one, shuffle=False)
    assert list(dataset) == [9, 5, 3, 1]


# What it is told, and its shape


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ([], {"pool_size": -1}, "pool_size=-1 must be at least 0"),
        ([], {"pool_size": 4, "order": "mine"}, "order='mine' must be one of"),
        ([], {"pool_size": None}, "pool_size=None must be an integer"),
        ([], {"key_fn": 3}, "key_fn=3 must be a function"),
        ([], {"initial_pool_size": 4}, "initial_pool_size=4 with warmup_pools=0: .* needs both"),
        ([], {"initial_pool_size": 9, "warmup_pools": 1}, "initial_pool_size=9 must be at most"),
        (iter([]), {}, "list_iterator is used up by one pass"),
        (7, {}, "a int yields no samples"),
    ],
)
def test_bad_arguments_are_refused(source: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PoolSortDataset(source, **{"pool_size": 8, **options})


def test_energon_finds_the_shape_of_a_savable_dataset() -> None:
    upstream = Savable(lengths_of(20))
    dataset = PoolSortDataset(upstream, 8)
    whole = numbers(dataset)
    assert (len(dataset), dataset.len_rank(), dataset.len_worker(0)) == (20, 20, 10)
    assert dataset.worker_has_samples()
    assert dataset.worker_config == upstream.worker_config
    assert dataset.can_restore_sample()
    assert dataset.restore_sample(3)["number"] == 3
    assert dataset.save_state()["__class__"] == "PoolSortDataset"
    config = dataset.config()
    assert config["dataset"] == {"type": "Savable"}
    assert config["pool_size"] == 8
    for reset in (
        dataset.reset_state_own,
        dataset.reset_state_deep,
        lambda: dataset.restore_state(None),
    ):
        list(itertools.islice(dataset, 11))
        reset()
        assert upstream.done == 0
        assert numbers(dataset) == whole


def reference(samples: list[Any], pool_size: int, passes: int, seed: int) -> list[list[int]]:
    """What LengthPoolSortDataset of LLaVA-OneVision-2 yields, written down independently."""
    of_run, result = random.Random(seed), []
    for _ in range(passes):
        given: list[Any] = []
        for begin in range(0, len(samples), pool_size):
            pool = sorted(samples[begin : begin + pool_size], key=lambda one: one["length"])
            last = begin + pool_size - 1
            (random.Random(42 + last) if last < len(samples) else of_run).shuffle(pool)
            given += pool
        result.append(numbers(given))
    return result


@pytest.mark.parametrize("count", [40, 46])
def test_the_reference_order_is_that_of_the_original_and_resumes(count: int) -> None:
    source = Plain(lengths_of(count))
    wanted = reference(list(source), 8, 3, seed=1234)

    def make() -> PoolSortDataset:
        return PoolSortDataset(Plain(lengths_of(count)), 8, seed=1234, order="reference")

    pools = make()
    for epoch in range(3):
        pools.set_epoch(epoch)
        assert numbers(pools) == wanted[epoch]
    begun = make()
    begun.set_epoch(2)
    passing = iter(begun)
    before = numbers(itertools.islice(passing, 19))
    resumed = make()
    resumed.load_state_dict(begun.state_dict())
    assert before + numbers(resumed) == wanted[2]
    with pytest.raises(MismatchError, match="order"):
        PoolSortDataset(source, 8, seed=1234).load_state_dict(begun.state_dict())


def test_a_pool_size_of_0_is_off() -> None:
    class Unsized(Plain):
        def __iter__(self) -> Iterator[Any]:
            return ({"number": number} for number in range(len(self.lengths)))

    off = PoolSortDataset(Unsized([1] * 9), 0)
    passing = iter(off)
    assert numbers(itertools.islice(passing, 4)) == [0, 1, 2, 3]
    resumed = PoolSortDataset(Unsized([1] * 9), 0)
    resumed.load_state_dict(off.state_dict())
    assert numbers(resumed) == [4, 5, 6, 7, 8]
