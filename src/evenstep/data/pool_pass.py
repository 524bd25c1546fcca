"""One pass over a `PoolSortDataset`: its pools, filled, ordered and given out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.data.pool_order import pool_order, reference_order, sample_key
from evenstep.data.resumable import Reading, ResumableIterable
from evenstep.errors import MismatchError, SampleError, described
from evenstep.plan.rng import RandomStream

if TYPE_CHECKING:
    from evenstep.data.pool_sort_dataset import PoolSortDataset


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
