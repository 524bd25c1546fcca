"""One pass over a `PoolSortDataset`: its pools, filled, ordered and given out."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.batch.measure import length_of
from evenstep.data.resumable import Reading, ResumableIterable
from evenstep.errors import MismatchError, SampleError, described
from evenstep.plan.rng import RandomStream, generator

if TYPE_CHECKING:
    from evenstep.data.pool_sort_dataset import PoolSortDataset


def sample_key(sample: Any) -> int:
    """The default sort key: ``total_len`` or ``length``, else the number of ``tokens``, else that
    of ``input_ids``; a field of a mapping, or an attribute.

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


def pool_order(keys: Int64Array | Float64Array, size: int, *key: int) -> Int64Array:
    """[n] indices of a pool's samples in the order in which they come.

    Args:
        keys: [n] in any order; n is at most `size`.
        size: samples of a full pool. Those of a smaller one take evenly spaced entries of its
            permutation, so that like quantiles come at like times in pools of any size.
        key: of the permutation.
    """
    by_key = np.argsort(keys, kind="stable")
    turns = np.argsort(generator(*key).permutation(size))  # [size] when each quantile comes
    quantiles = (2 * np.arange(len(keys)) + 1) * size // (2 * max(len(keys), 1))  # [n]
    order: Int64Array = by_key[np.argsort(turns[quantiles])]
    return order


def reference_order(
    keys: Float64Array, size: int, *, before: int, seed: int, epoch: int
) -> Int64Array:
    """[n] indices of a pool's samples in the order of LengthPoolSortDataset of LLaVA-OneVision-2.

    A full pool is shuffled by a generator of its own, seeded with 42 and the number in the pass of
    the sample that filled it. What is left at the end is shuffled by a generator of the run, which
    has shuffled the ends of the passes before.

    Args:
        keys: [n] as for `pool_order`.
        before: samples of the pass before this pool.
        seed: of the run's generator.
        epoch: passes before this one; all ended with as many samples.
    """
    order = np.argsort(keys, kind="stable").tolist()
    if len(order) == size:
        random.Random(42 + before + size - 1).shuffle(order)
    else:
        of_run = random.Random(seed)
        for _ in range(epoch):
            of_run.shuffle(list(order))
        of_run.shuffle(order)
    return np.array(order, np.int64)


class PoolPass:
    """A pool at a time. The dataset is opened when the first sample is asked for."""

    def __init__(self, owner: PoolSortDataset, iterable: ResumableIterable) -> None:
        self._owner = owner
        self._iterable = iterable
        self._epoch = owner.epoch
        self._reading: Reading | None = None
        self._pool_begin: Mapping[str, Any] | None = None  # resume point of the wrapped dataset
        self._number = -1  # of the pool
        self._pool: list[Any] = []
        self._given = 0
        self._ended = self._resumed = False
        self._start: Mapping[str, Any] | None = None  # until the first pool is filled

    def __iter__(self) -> PoolPass:
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
        number, given, point = self._number, self._given, self._pool_begin
        if given == len(self._pool) and not self._ended:  # then the next pool is next
            number, given, point = number + 1, 0, self._reading.resume_point()
        inner = {
            "epoch": self._epoch,
            "pool": number,
            "given": given,
            "ended": self._ended and given == len(self._pool),
            "upstream": point,
        }
        return self._owner.envelope(inner)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        inner = self._owner.opened(state)
        self.__init__(self._owner, self._iterable)  # type: ignore[misc]
        if inner is not None:
            self.resume(inner)

    def resume(self, inner: Mapping[str, Any]) -> None:
        self._start = inner
        self._epoch, self._number = int(inner["epoch"]), int(inner["pool"]) - 1
        self._pool_begin, self._ended = inner["upstream"], bool(inner["ended"])
        self._resumed = True

    def _fill(self) -> None:
        owner = self._owner
        if self._reading is None:
            if self._resumed and callable(set_epoch := getattr(owner.dataset, "set_epoch", None)):
                set_epoch(self._epoch)  # the resumed order is of that epoch
            self._reading = self._iterable.read(self._pool_begin)
        else:
            self._pool_begin = self._reading.resume_point()
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
        self._pool = self._ordered(samples, size) if owner.pool_size else samples
        self._pool[:skip] = [None] * skip
        self._given, self._start = skip, None
        if self._ended:
            self._iterable.rewinder.finished(whole=not self._resumed)

    def _ordered(self, samples: list[Any], size: int) -> list[Any]:
        owner, epoch = self._owner, self._epoch
        keys = np.array([self._key(sample, at) for at, sample in enumerate(samples)], np.float64)
        if not owner.ascending:
            keys = -keys
        if not owner.shuffle:
            order = np.argsort(keys, kind="stable")
        elif owner.order == "reference":
            before = owner.samples_before(self._number)
            order = reference_order(keys, size, before=before, seed=owner.seed, epoch=epoch)
        else:
            stream = RandomStream.POOL_SORT_DATASET
            order = pool_order(keys, size, owner.seed, epoch, self._number, stream)
        return [samples[at] for at in order.tolist()]

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
                f"{name}: key_fn ({role}) raised {described(error)}; it must give a "
                "number for every sample"
            ) from error
        if math.isnan(key):
            raise SampleError(f"{name}: key_fn gave nan, which cannot be sorted")
        return key
