"""`PoolSortDataset`: pool sort as a dataset, for loaders that know nothing of evenstep.

Samples gather in a pool, are sorted, and come in an order that is a function of (seed, epoch,
number of the pool) alone. So like samples come at like times wherever the pools are as large: on
every rank and in every worker. `evenstep.PoolSort` does the same behind the workers, where one pool
serves all of them; prefer it where evenstep loads the data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset

from evenstep.arrays import Int64Array
from evenstep.batch.measure import length_of
from evenstep.data.resumable import Reading, ResumableIterable
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.policies.pool_sort import check_warm_up, warm_up_size
from evenstep.plan.rng import Stream, generator

__all__ = ["PoolSortDataset", "pool_order", "sample_key"]


_VERSION = 1


def sample_key(sample: Any) -> int:
    """What samples are sorted by where nothing else is said: ``total_len`` or ``length``, else the
    number of ``tokens``, else that of ``input_ids``; a field of a mapping, or an attribute.

    Raises:
        SampleError: it has none of them.
    """

    def find(name: str) -> Any:
        return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)

    for name in ("total_len", "length"):
        if (value := find(name)) is not None:
            return int(value)
    if (tokens := find("tokens")) is not None:
        return len(tokens)
    try:
        return length_of(sample)
    except SampleError as error:
        raise SampleError(
            f"a {type(sample).__name__} has no total_len, length, tokens or input_ids to sort by; "
            "pass key_fn=, a function from a sample to a number"
        ) from error


def pool_order(keys: Int64Array | npt.NDArray[np.float64], size: int, *key: int) -> Int64Array:
    """The order in which the samples of a pool come.

    Args:
        keys: [n] already sorted or not; n is at most `size`.
        size: samples of a full pool. Those of a smaller one take evenly spaced places of its
            permutation, so that like quantiles come at like times in pools of any size.
        key: of the permutation.
    """
    by_key = np.argsort(keys, kind="stable")
    turns = np.argsort(generator(*key).permutation(size))  # when each place of the full pool comes
    places = (2 * np.arange(len(keys)) + 1) * size // (2 * max(len(keys), 1))
    order: Int64Array = by_key[np.argsort(turns[places])]
    return order


class PoolSortDataset(IterableDataset):  # type: ignore[type-arg]
    """Samples of another dataset, one by one, in an order in which ranks get like lengths at once.

    Ranks stay aligned if each has as many workers, with shares of one data set: pool k of worker w
    is then as large on all of them, and has the same permutation. A worker holds one pool, in
    memory.

    A pass can be gone on with exactly, by ``state_dict`` and ``load_state_dict`` of this dataset or
    of its iterator, or by the methods of a Megatron-Energon ``SavableDataset``, as which it is
    registered when that library is loaded. The state holds where the pool began upstream and how
    many of it were yielded, never a sample: to go on, the pool is filled again. The iterable's own
    state is used where it has any; else it is read again from its beginning (see `ResumableIterable`), and
    must yield the same samples.
    """

    def __init__(
        self,
        dataset: Any,
        pool_size: int,
        key_fn: Callable[[Any], float] | None = None,
        ascending: bool = True,
        seed: int = 0,
        initial_pool_size: int | None = None,
        warmup_pools: int = 0,
        *,
        shuffle: bool = True,
    ) -> None:
        """
        Args:
            dataset: of this rank. An iterable dataset or a torch DataLoader over samples, which
                split their samples among workers themselves; a function that returns an iterator;
                or a map-style dataset, read in order, every n-th sample by each of n workers.
            pool_size: samples that are sorted together; 10 to 100 batches.
            key_fn: from a sample to the number that is sorted by; `sample_key` by default.
            ascending: sort the smallest first; of consequence where pools are not shuffled.
            seed: the same on all ranks.
            initial_pool_size: of the first pool, so that its first sample comes soon.
            warmup_pools: pools over which the size grows from it to `pool_size`, by equal amounts.
            shuffle: False yields each pool from one end to the other.

        Raises:
            ConfigurationError: an argument is out of range, or `dataset` can be read but once.
        """
        check_given(pool_size=pool_size, seed=seed)
        check_at_least(1, pool_size=pool_size)
        check_warm_up(initial_pool_size, pool_size, warmup_pools=warmup_pools)
        if key_fn is not None and not callable(key_fn):
            raise ConfigurationError(
                f"key_fn={key_fn!r} must be a function from a sample to a number, or None"
            )
        self.dataset = dataset
        self.pool_size = pool_size
        self.key_fn = key_fn
        self.ascending = ascending
        self.seed = seed
        self.initial_pool_size = initial_pool_size
        self.warmup_pools = warmup_pools
        self.shuffle = shuffle
        self.epoch = 0
        self._upstream = ResumableIterable(dataset)
        self._loaded: Mapping[str, Any] | None = None
        self._pass: _Pass | None = None
        energon = sys.modules.get("megatron.energon")
        if energon is not None:
            # Its wrappers take what is not an instance of this for a list of datasets.
            energon.SavableDataset.register(PoolSortDataset)

    def set_epoch(self, epoch: int) -> None:
        """Other permutations; upstream is told as well. Before a pass begins, and in every worker:
        workers that persist from pass to pass have a copy of their own."""
        check_given(epoch=epoch)
        check_at_least(0, epoch=epoch)
        self.epoch = epoch
        if callable(tell := getattr(self.dataset, "set_epoch", None)):
            tell(epoch)

    def __iter__(self) -> Iterator[Any]:
        """A pass from the beginning, or the rest of one where a state was just loaded."""
        self._pass = _Pass(self, self._upstream)
        if self._loaded is not None:
            self._pass.resume(self._loaded)
            self._loaded = None
        return self._pass

    def __len__(self) -> int:
        """Samples of a pass, where upstream knows it; TypeError elsewhere."""
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None}  # which may hold open files

    def size_of(self, pool: int) -> int:
        """Samples of pool number `pool` of a pass, counted from 0."""
        return warm_up_size(self.initial_pool_size, self.pool_size, pool, self.warmup_pools)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Where the pass that was begun last is; of no pass before the first."""
        if self._pass is not None:
            return self._pass.state_dict()
        return self.envelope(self._loaded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass yields what would have come after `state` was saved. A state from before
        the first pass means the beginning.

        Raises:
            MismatchError: it is of other pools, or of no `PoolSortDataset`.
        """
        self._loaded, self._pass = self.opened(state), None

    def envelope(self, inner: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"version": _VERSION, "pools": self._pools(), "pass": inner}

    def opened(self, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if state.get("version") != _VERSION:
            raise MismatchError(
                f"not a state of PoolSortDataset that this version reads: version="
                f"{state.get('version')!r} must be {_VERSION}"
            )
        for name, value in self._pools().items():
            if state["pools"].get(name) != value:
                raise MismatchError(
                    f"the state was saved with {name}={state['pools'].get(name)!r}, and this "
                    f"dataset has {value!r}; its pools would be others, so give the same"
                )
        inner: Mapping[str, Any] | None = state["pass"]
        return inner

    def _pools(self) -> dict[str, Any]:
        return {
            "pool_size": int(self.pool_size),
            "ascending": bool(self.ascending),
            "seed": int(self.seed),
            "initial_pool_size": self.initial_pool_size,
            "warmup_pools": int(self.warmup_pools),
            "shuffle": bool(self.shuffle),
        }

    # The shape of a Megatron-Energon SavableDataset

    @property
    def worker_config(self) -> Any:
        return self.dataset.worker_config

    def save_state(self) -> dict[str, Any]:
        return {"__class__": type(self).__name__, **self.state_dict()}

    def restore_state(self, state: Mapping[str, Any] | None) -> None:
        """None is the beginning."""
        if state is None:
            self.reset_state_own()
        else:
            self.load_state_dict(state)

    def reset_state_own(self) -> None:
        """ResumableIterable as well, since Energon takes this dataset for one without any."""
        self._loaded = self._pass = None
        self._upstream.reset()

    def reset_state_deep(self) -> None:
        self.reset_state_own()

    def worker_has_samples(self) -> bool:
        return bool(self.dataset.worker_has_samples())

    def len_worker(self, worker_idx: int | None = None) -> int:
        return int(self.dataset.len_worker(worker_idx))

    def len_rank(self) -> int:
        return int(self.dataset.len_rank())

    def can_restore_sample(self) -> bool:
        return bool(self.dataset.can_restore_sample())

    def assert_can_restore(self) -> None:
        self.dataset.assert_can_restore()

    def restore_sample(self, restore_key: Any) -> Any:
        return self.dataset.restore_sample(restore_key)

    def config(self) -> dict[str, Any]:
        inner = getattr(self.dataset, "config", None)
        key_fn = self.key_fn or sample_key
        return {
            "type": type(self).__qualname__,
            "dataset": inner() if callable(inner) else type(self.dataset).__qualname__,
            "key_fn": getattr(key_fn, "__qualname__", type(key_fn).__qualname__),
            **self._pools(),
        }


class _Pass:
    """One pass: a pool at a time. Nothing is opened before the first sample is asked for."""

    def __init__(self, owner: PoolSortDataset, upstream: ResumableIterable) -> None:
        self._owner = owner
        self._upstream = upstream
        self._epoch = owner.epoch
        self._reading: Reading | None = None
        self._place: Mapping[str, Any] | None = None  # upstream, where this pool began
        self._number = -1  # of the pool
        self._pool: list[Any] = []
        self._given = 0
        self._ended = self._resumed = False
        self._start: Mapping[str, Any] | None = None  # until the first pool is filled

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        while self._given == len(self._pool):
            if self._ended:
                raise StopIteration
            self._fill()
        sample, self._pool[self._given] = self._pool[self._given], None
        self._given += 1
        return sample

    def state_dict(self) -> dict[str, Any]:
        if self._start is not None or self._reading is None:
            return self._owner.envelope(self._start)
        number, given, place = self._number, self._given, self._place
        if given == len(self._pool) and not self._ended:  # then the next pool is next
            number, given, place = number + 1, 0, self._reading.place()
        inner = {
            "epoch": self._epoch,
            "pool": number,
            "given": given,
            "ended": self._ended and given == len(self._pool),
            "upstream": place,
        }
        return self._owner.envelope(inner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        inner = self._owner.opened(state)
        self.__init__(self._owner, self._upstream)  # type: ignore[misc]
        if inner is not None:
            self.resume(inner)

    def resume(self, inner: Mapping[str, Any]) -> None:
        self._start = inner
        self._epoch, self._number = int(inner["epoch"]), int(inner["pool"]) - 1
        self._place, self._ended = inner["upstream"], bool(inner["ended"])
        self._resumed = True

    def _fill(self) -> None:
        owner = self._owner
        if self._reading is None:
            if self._resumed and callable(tell := getattr(owner.dataset, "set_epoch", None)):
                tell(self._epoch)  # the order that it goes on with is of that epoch
            self._reading = self._upstream.read(self._place)
        else:
            self._place = self._reading.place()
        self._number += 1
        size = owner.size_of(self._number)
        samples = self._reading.take(size)
        self._ended = len(samples) < size
        skip = int(self._start["given"]) if self._start is not None else 0
        if len(samples) < skip:
            raise MismatchError(
                f"the dataset has {len(samples)} more samples where the state was saved after "
                f"{skip}; it must yield the same samples as then"
            )
        keys = np.array([self._key(sample, at) for at, sample in enumerate(samples)], np.float64)
        if not owner.ascending:
            keys = -keys
        if owner.shuffle:
            order = pool_order(
                keys, size, owner.seed, self._epoch, self._number, Stream.POOL_SORT_DATASET
            )
        else:
            order = np.argsort(keys, kind="stable")
        self._pool = [samples[at] for at in order.tolist()]
        self._pool[:skip] = [None] * skip
        self._given, self._start = skip, None
        if self._ended:
            self._upstream.finished(whole=not self._resumed)

    def _key(self, sample: Any, at: int) -> float:
        name = f"sample {at} of pool {self._number}"
        key_fn = self._owner.key_fn or sample_key
        try:
            key = float(key_fn(sample))
        except SampleError as error:
            raise SampleError(f"{name}: {error}") from error
        except Exception as error:
            role = getattr(key_fn, "__qualname__", repr(key_fn))
            raise SampleError(
                f"{name}: key_fn ({role}) raised {type(error).__name__}: {error}; it must give a "
                "number for every sample"
            ) from error
        if math.isnan(key):
            raise SampleError(f"{name}: key_fn gave nan, which has no place in an order")
        return key
