"""What happens in a worker: samples are prepared, measured, and handed over in chunks.

One message for many samples is what keeps up with a loader that collates in its workers. The
dataset is wrapped so that an error names the sample, and otherwise shows through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, Subset, get_worker_info

from evenstep.batch.digest import digests_of
from evenstep.batch.measure import Measure
from evenstep.errors import SampleError
from evenstep.loader.transport.shared_memory import PackedObject, Writer
from evenstep.loader.workers.seeding import sample_seed, seed_everything
from evenstep.plan.policy import Policy

__all__ = ["Chunk", "ChunkCollate", "IndexedDataset", "Origin", "Raw", "Request", "Transparent"]


@dataclass(frozen=True)
class Request:
    """A chunk that a worker is asked for."""

    epoch_seed: int
    indices: tuple[Any, ...]


@dataclass(frozen=True)
class Origin:
    """Where a chunk of an iterable dataset comes from."""

    worker: int
    state: str | None
    """JSON text: how the worker goes on after this chunk; None where the dataset cannot say."""
    ended: bool
    """The worker has nothing more."""


@dataclass(frozen=True)
class Raw:
    """A chunk before it is measured."""

    samples: list[Any]
    """A `SampleError` takes the place of a sample that could not be had."""
    names: list[str]
    """What errors call each of them."""
    origin: Origin | None = None


@dataclass(frozen=True)
class Chunk:
    """Some samples in order, with what planning needs to know of them."""

    size: int
    """Samples asked for, bad ones included."""
    places: npt.NDArray[np.int64]
    """[samples] which of them these are."""
    columns: npt.NDArray[np.int64]
    """[samples, 3] length, supervised tokens, patches."""
    payload: PackedObject | list[Any]
    """The samples: in shared memory when they come from a worker process."""
    bad: tuple[tuple[int, str], ...] = ()
    """The samples left out: which, and why."""
    origin: Origin | None = None
    digests: npt.NDArray[np.int64] | None = None
    """[samples] of what they hold, where other ranks must prepare the same."""


class Transparent:
    """Holds a dataset that shows through, so that ``worker_init_fn`` finds there what it expects in
    ``get_worker_info().dataset``."""

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not set yet: being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class IndexedDataset(Transparent, Dataset):  # type: ignore[type-arg]
    """A map-style dataset that prepares the chunks asked for."""

    def __init__(self, dataset: Any, *, skips: bool) -> None:
        """
        Args:
            skips: leave samples out that the dataset raises for, instead of failing.
        """
        super().__init__(dataset)
        object.__setattr__(self, "_skips", skips)

    def __getitems__(self, requests: Sequence[Request]) -> Raw:
        (request,) = requests
        return Raw(list(self._prepare(request)), [f"sample {i!r}" for i in request.indices])

    def _prepare(self, request: Request) -> Iterator[Any]:
        # In the trainer's process, random state is the trainer's.
        seeds = get_worker_info() is not None
        fetch = _batched_fetch(self._dataset)
        if fetch is not None and request.indices:
            if seeds:
                seed_everything(sample_seed(request.epoch_seed, request.indices[0]))
            try:
                samples = list(fetch(list(request.indices)))
                if len(samples) != len(request.indices):
                    raise IndexError(
                        f"{len(samples)} samples for {len(request.indices)} indices of __getitems__"
                    )
            except Exception as error:
                if not self._skips:
                    raise _failed(self._culprit(request.indices), error) from error
            else:
                yield from samples
                return
        for index in request.indices:
            if seeds:
                seed_everything(sample_seed(request.epoch_seed, index))
            try:
                sample = self._dataset[index]
            except Exception as error:
                sample = _failed(f"sample {index!r}", error)
                if not self._skips:
                    raise sample from error
            yield sample

    def _culprit(self, indices: Sequence[Any]) -> str:
        """Which of the samples cannot be had, found by asking for them one by one."""
        for index in indices:
            try:
                self._dataset[index]
            except Exception:
                return f"sample {index!r}"
        return f"one of the samples {list(indices)}"

    def __getitem__(self, request: Request) -> Raw:
        return self.__getitems__([request])


def _batched_fetch(dataset: Any) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The dataset's own way to fetch several samples at once. torch's ``Subset`` has one in any
    case; what counts is whether the dataset in it has."""
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    return getattr(dataset, "__getitems__", None) if hasattr(inner, "__getitems__") else None


def _failed(what: str, error: Exception) -> SampleError:
    return SampleError(
        f"the dataset raised {type(error).__name__} for {what}: {error}; mend the sample or leave "
        "its index out of the sampler"
    )


class ChunkCollate:
    """The collate function of the inner loader: `Raw` -> `Chunk`."""

    def __init__(self, *, measure: Measure, policy: Policy, skips: bool, packed: bool) -> None:
        """
        Args:
            skips: leave samples out that cannot be measured or are too long, instead of failing.
            packed: put the samples into shared memory.
        """
        self._measure = measure
        self._policy = policy
        self._skips = skips
        self._packed = packed
        self._writer: Writer | None = None

    def __call__(self, raw: Raw) -> Chunk:
        places = np.arange(len(raw.samples))
        bad: list[tuple[int, str]] = []
        try:
            columns = self._columns(raw.samples, raw.names)
        except SampleError:
            if not self._skips:
                raise
            places, columns, bad = self._without_bad(raw)
        samples = [raw.samples[place] for place in places.tolist()]
        digests = digests_of(samples) if self._policy.context_parallel > 1 else None
        payload: PackedObject | list[Any] = samples
        if self._packed and samples:
            if self._writer is None:  # made in the worker, never before it is forked
                self._writer = Writer()
            payload = self._writer.pack(samples)
        return Chunk(len(raw.samples), places, columns, payload, tuple(bad), raw.origin, digests)

    def _columns(self, samples: list[Any], names: list[str]) -> npt.NDArray[np.int64]:
        if not samples:
            return np.empty((0, 3), np.int64)
        for sample in samples:
            if isinstance(sample, SampleError):
                raise sample
        columns = self._measure(samples, names)
        limit = self._policy.max_length
        if limit is not None and columns[:, 0].max() > limit:
            worst = int(np.argmax(columns[:, 0] > limit))
            raise self._policy.explain_too_long(names[worst], int(columns[worst, 0]))
        return columns

    def _without_bad(
        self, raw: Raw
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[tuple[int, str]]]:
        places, columns, bad = [], [np.empty((0, 3), np.int64)], []
        for place, (sample, name) in enumerate(zip(raw.samples, raw.names)):
            try:
                columns.append(self._columns([sample], [name]))
                places.append(place)
            except SampleError as error:
                bad.append((place, str(error)))
        return np.array(places, np.int64), np.concatenate(columns), bad
