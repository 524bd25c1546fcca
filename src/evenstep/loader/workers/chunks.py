"""Prepares and measures samples in a worker, and hands them over in chunks.

One message for many samples makes this as fast as a loader that collates in its workers. The
dataset is wrapped, so that errors name the sample.

Whatever the user's code raises becomes a `SampleError`, a `SystemExit` too: a worker ends
without a word if it raises something that is not an `Exception`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset, get_worker_info

from evenstep.arrays import Int64Array
from evenstep.batch.cut import Fitting
from evenstep.batch.measure import Measure, digests_of
from evenstep.errors import (
    OF_CODE,
    ConfigurationError,
    EvenstepError,
    SampleError,
    TooLongError,
    described,
)
from evenstep.loader.transport.shared_memory import PackedObject, Writer, to_buffers
from evenstep.loader.workers.worker_start import sample_seed, seed_everything
from evenstep.protocol.window_buffer import TOO_LONG


@dataclass(frozen=True)
class ChunkRequest:
    """The samples that a worker is asked to prepare as one chunk."""

    epoch_seed: int
    indices: tuple[Any, ...]


@dataclass(frozen=True)
class ChunkOrigin:
    """The worker that a chunk of an iterable dataset comes from, and the samples' sources."""

    worker: int
    state: str | None
    """JSON text to resume the worker from after this chunk; None if the dataset has no state."""
    ended: bool
    """The worker has no more samples."""
    names: tuple[str, ...] | None = None
    """[samples] source and number of each, where the dataset is a mixture."""


@dataclass(frozen=True)
class RawChunk:
    """A chunk before it is measured."""

    samples: list[Any]
    """Samples, or a `SampleError` for each that the dataset raised for."""
    names: list[str]
    """What errors call each sample."""
    origin: ChunkOrigin | None = None
    split: frozenset[int] = frozenset()
    """Positions of the first pieces of samples that were too long."""


@dataclass(frozen=True)
class Chunk:
    """Some samples in order, and what planning needs to know about them."""

    size: int
    """Samples requested, bad ones included."""
    positions: Int64Array
    """[samples] position of each sample among those requested."""
    columns: Int64Array
    """[samples, 6] what `Measure` counts."""
    payload: PackedObject | list[Any]
    """The samples; in shared memory when they come from a worker process."""
    bad: tuple[tuple[int, str, bool], ...] = ()
    """Samples left out: their position, why, and whether they count as bad: not where they are too
    long, and to be left out."""
    origin: ChunkOrigin | None = None
    digests: Int64Array | None = None
    """[samples] digest of each sample, where context-parallel peers must prepare the same."""


class Preparation:
    """What is made of the dataset's samples before they are measured, where the collate function
    prepares them."""

    def __init__(self, prepare: Callable[[Any, str], Any] | None, *, skip_bad: bool) -> None:
        """
        Args:
            prepare: None where the dataset itself prepares its samples.
            skip_bad: return a `SampleError` instead of raising it.
        """
        self.prepare = prepare
        self.skip_bad = skip_bad

    def __call__(self, sample: Any, name: str) -> Any:
        if self.prepare is None or sample is None or isinstance(sample, SampleError):
            return sample
        try:
            return self.prepare(sample, name)
        except ConfigurationError:  # no sample is to blame
            raise
        except BaseException as error:
            said = f"collate_fn raised {described(error)}; fix the sample or leave it out"
            if isinstance(error, SampleError):
                said = str(error)
            failed = SampleError(f"{name}: {said}")
            if self.skip_bad and not isinstance(error, OF_CODE):
                return failed
            raise failed from error


@dataclass(frozen=True)
class Splitting:
    """A sample -> the pieces that it is trained on in."""

    measure: Measure
    fitting: Fitting

    def __call__(self, sample: Any, name: str) -> list[Any]:
        if sample is None or isinstance(sample, SampleError):
            return [sample]
        lengths = self.measure(one := [sample], [name])[:, 0]
        if not self.fitting.over(lengths):
            return one
        return self.fitting.pieces(one[0], name, int(lengths[0]))

    @classmethod
    def of(cls, measure: Measure, fitting: Fitting | None) -> Splitting | None:
        """None where samples stay whole."""
        return cls(measure, fitting) if fitting is not None and fitting.choice == "split" else None


class IndexedDataset(Dataset):  # type: ignore[type-arg]
    """Prepares requested chunks from a map-style dataset."""

    def __init__(self, dataset: Any, preparation: Preparation) -> None:
        """
        Args:
            preparation: of each sample; it says, too, whether samples that the dataset raises for
                are left out.
        """
        self.dataset = dataset
        self._preparation = preparation

    def __getitems__(self, requests: Sequence[ChunkRequest]) -> RawChunk:
        (request,) = requests
        names = [_name(index) for index in request.indices]
        fetched = self._fetch(request, names)
        return RawChunk([self._preparation(*each) for each in zip(fetched, names)], names)

    def _fetch(self, request: ChunkRequest, names: list[str]) -> Iterator[Any]:
        # In the trainer process the random state is the trainer's, and stays untouched.
        seeds = get_worker_info() is not None
        fetch = _batched_fetch(self.dataset)
        if fetch is not None and request.indices:
            if seeds:
                seed_everything(sample_seed(request.epoch_seed, request.indices[0]))
            try:
                samples = list(fetch(list(request.indices)))
                if len(samples) != len(request.indices):
                    raise IndexError(
                        f"{len(samples)} samples for {len(request.indices)} indices of __getitems__"
                    )
            except BaseException as error:
                if not self._preparation.skip_bad:
                    culprit = _culprit(lambda i: self.dataset[i], request.indices, names)
                    raise _failed(culprit, error) from error
            else:
                for index, sample in zip(request.indices, samples):
                    if seeds and self._preparation.prepare is not None:
                        seed_everything(sample_seed(request.epoch_seed, index))
                    yield sample
                return
        for index, name in zip(request.indices, names):
            if seeds:
                seed_everything(sample_seed(request.epoch_seed, index))
            try:
                sample = self.dataset[index]
            except BaseException as error:
                sample = _failed(name, error)
                if not self._preparation.skip_bad or isinstance(error, OF_CODE):
                    raise sample from error
            yield sample

    def __getitem__(self, request: ChunkRequest) -> RawChunk:
        return self.__getitems__([request])


def _batched_fetch(dataset: Any) -> Callable[[list[Any]], Sequence[Any]] | None:
    """The dataset's own function to fetch several samples at once; None if it has none. torch's
    ``Subset`` always has one, so the dataset inside it is checked instead."""
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    return getattr(dataset, "__getitems__", None) if hasattr(inner, "__getitems__") else None


def _name(index: Any) -> str:
    try:
        return f"sample {index!r}"
    except BaseException as error:
        raise SampleError(f"the repr() of a dataset index raised {described(error)}") from error


def _failed(name: str, error: BaseException) -> SampleError:
    return SampleError(
        f"{name}: the dataset raised {described(error)}; fix the sample or exclude its index from "
        "the sampler"
    )


def _none(name: str) -> SampleError:
    return SampleError(
        f"{name}: the dataset returned None; exclude its index from the sampler, or let "
        "faults=evenstep.Faults(skip_bad_samples=...) leave out so many samples"
    )


def _culprit(function: Callable[[Any], Any], items: Sequence[Any], names: Sequence[str]) -> str:
    """The name of the first item that the function raises for, found by trying one by one."""
    for item, name in zip(items, names):
        try:
            function(item)
        except BaseException:
            return name
    return f"one of {', '.join(names)}"


@contextlib.contextmanager
def _naming(
    what: str, function: Callable[[Any], Any], samples: Sequence[Any], names: Sequence[str]
) -> Iterator[None]:
    """What is raised within becomes a `SampleError` that names the sample for which `function`
    raises."""
    try:
        yield
    except EvenstepError:
        raise
    except BaseException as error:
        culprit = _culprit(function, samples, names)
        raise SampleError(f"{culprit}: {what} raised {described(error)}") from error


class ChunkCollate:
    """The collate function of the inner loader: `RawChunk` -> `Chunk`."""

    def __init__(
        self,
        *,
        measure: Measure,
        fitting: Fitting | None,
        digests: bool,
        skip_bad: bool,
        packed: bool,
        lock: contextlib.AbstractContextManager[Any] | None,
    ) -> None:
        """
        Args:
            fitting: what becomes of samples that are too long; None where none is.
            digests: context-parallel peers must prepare the same samples.
            skip_bad: leave out samples that cannot be measured or are too long, instead of failing.
            packed: put the samples into shared memory.
            lock: held while samples are measured; None for none, as one cannot be sent to workers.
        """
        self._lock = lock
        self._measure = measure
        self._fitting = fitting
        self._digests = digests
        self._skip_bad = skip_bad
        self._packed = packed
        self._writer: Writer | None = None

    def __call__(self, raw: RawChunk) -> Chunk:
        skips = self._fitting is not None and self._fitting.choice == "skip"
        try:
            return self._chunk(raw, {})
        except SampleError:
            if not (self._skip_bad or skips):
                raise
            return self._chunk(raw, self._bad(raw, skips))

    def _chunk(self, raw: RawChunk, bad: Mapping[int, tuple[str, bool]]) -> Chunk:
        """The chunk without bad samples, which are named by position."""
        positions = [position for position in range(len(raw.samples)) if position not in bad]
        samples = [raw.samples[position] for position in positions]
        names = [raw.names[position] for position in positions]
        columns = self._columns(samples, names)
        columns[[position in raw.split for position in positions], 5] |= TOO_LONG
        digests = digests_of(samples) if self._digests else None
        payload: PackedObject | list[Any] = samples
        if self._packed and samples:
            if self._writer is None:  # made in the worker, never before it is forked
                self._writer = Writer()
            with _naming("its pickling", to_buffers, samples, names):
                payload = self._writer.pack(samples)
        return Chunk(
            len(raw.samples),
            np.array(positions, np.int64),
            columns,
            payload,
            tuple((position, *why) for position, why in sorted(bad.items())),
            raw.origin,
            digests,
        )

    def _columns(self, samples: list[Any], names: list[str]) -> Int64Array:
        for sample, name in zip(samples, names):
            if isinstance(sample, SampleError):
                raise sample
            if sample is None:
                raise _none(name)
        with (
            self._lock or contextlib.nullcontext(),
            _naming("its measuring", lambda one: self._measure([one], [""]), samples, names),
        ):
            columns = self._measure(samples, names)
        fitting = self._fitting
        if fitting is None:
            return columns
        for place in fitting.over(columns[:, 0]):
            length = int(columns[place, 0])
            samples[place] = fitting.fitted(samples[place], names[place], length)
            columns[place] = self._measure([samples[place]], [names[place]])
            columns[place, 5] |= TOO_LONG
        return columns

    def _bad(self, raw: RawChunk, skips: bool) -> dict[int, tuple[str, bool]]:
        """By position, samples that cannot be measured or are too long, why, and whether they count
        as bad.

        Args:
            skips: samples that are too long do not.
        """
        bad = {}
        for position, (sample, name) in enumerate(zip(raw.samples, raw.names)):
            try:
                self._columns([sample], [name])
            except SampleError as error:
                counts = not (skips and isinstance(error, TooLongError))
                if counts and not self._skip_bad:
                    raise
                bad[position] = str(error), counts
        return bad
