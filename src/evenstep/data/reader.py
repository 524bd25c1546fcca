"""`SourceReader`: the interface through which every kind of source is read.

A position (0, 1, 2, ..., over all passes) names a sample of a source's order. A reader yields the
samples from any position on, one after the other, and holds one shard at most. An error about a
sample names its source, shard and index.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.block_cache import CacheCounts
from evenstep.data.file_index import kept_digest
from evenstep.data.shard_order import SampleLocation, ShardOrder, ShardPart
from evenstep.data.source import Source
from evenstep.data.source_files import SourceFile, content_digest, digest
from evenstep.data.storage import attempted, check_unchanged
from evenstep.errors import (
    ConfigurationError,
    SampleError,
    StorageError,
    described,
)
from evenstep.plan.value_checks import check_at_least, check_given


@dataclass(frozen=True)
class StoredSample:
    """A sample with its position and identity."""

    position: int
    pass_number: int
    shard: int
    index: int
    sample: Any


class SourceReader(abc.ABC):
    """An open source. Use it in one thread; `close` it, or use it in a ``with`` statement."""

    repeat: bool = True
    """Whether `read` starts again after the last sample."""
    random_access: bool = False
    """Whether reading one sample costs no more than that sample. False: the samples before it in
    its shard are read, or the shard is decoded as a whole."""

    _files: Sequence[SourceFile] = ()

    def __init__(self, source: Source, seed: int) -> None:
        self.source, self.seed = source, seed

    @property
    @abc.abstractmethod
    def size(self) -> int | None:
        """Samples of a pass; None if unknown."""

    @abc.abstractmethod
    def order(self, position: int) -> SampleLocation:
        """Location of the sample at a position."""

    @abc.abstractmethod
    def _from(self, position: int) -> Iterator[tuple[SampleLocation, Any]]:
        """Stored samples from a position on, without end."""

    @abc.abstractmethod
    def _content(self) -> Mapping[str, Any]:
        """The part of the fingerprint that identifies the data."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """JSON-able; equal for equal samples in equal order, as far as some blocks of the files and
        the transform's code tell."""
        content = None
        if self._files:
            content = kept_digest(self._files, partial(content_digest, self.source, self._files))
        return {
            "source": self.source.name,
            **self._content(),
            "content": content,
            "columns": None if self.source.columns is None else list(self.source.columns),
            "transform": self.source.transform_code,
            "shuffle": self.source.shuffle,
            "seed": self.seed,
        }

    @property
    def cache_counts(self) -> CacheCounts:
        """What a cache of its files did."""
        caches = (file.cache for file in self._files if file.cache is not None)
        return next((cache.counts for cache in caches), CacheCounts())

    def read(
        self, position: int = 0, *, passes: int | None = None, transform: bool = True
    ) -> Iterator[StoredSample]:
        """Samples from a position on.

        Args:
            passes: end before pass number `passes`; None means 1, or endlessly under `repeat`.
            transform: False yields them as stored, for callers that run `Source.prepare`
                elsewhere.

        Raises:
            SampleError: a sample cannot be read, or the transform raised.
            StorageError: its file cannot be read, or has changed.
        """
        check_given(position=position)
        check_at_least(0, position=position)
        if passes is None and not self.repeat:
            passes = 1
        for where, stored in self._from(position):
            if passes is not None and where.pass_number >= passes:
                return
            sample = self.source.prepare(stored, where.shard, where.index) if transform else stored
            yield StoredSample(position, *where, sample)
            position += 1

    def close(self) -> None:  # noqa: B027  most kinds hold nothing between two samples
        """Releases files and memory. Idempotent."""

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: Exception, shard: int, index: int | None = None) -> SampleError:
        within = "" if index is None else f"[{index}]"
        at = f"sample {self.source.name}[{shard}]{within} ({self._shard_name(shard)})"
        if not isinstance(error, StorageError):
            try:
                if (file := self._file(shard)) is not None:
                    attempted(file, partial(check_unchanged, file))
                return SampleError(f"{at} cannot be read: {described(error)}")
            except StorageError as cause:
                error = cause
        return StorageError(f"{at}: {error}")

    def _file(self, shard: int) -> SourceFile | None:
        """The file that a shard lies in; None for a dataset."""
        return None

    def _shard_name(self, shard: int) -> str:
        """Where a shard lies, for errors."""
        return f"shard {shard}"


class ShardedReader(SourceReader):
    """A source whose shards and their sizes are known. Kinds differ in `_shard` alone."""

    _order: ShardOrder

    @property
    def size(self) -> int:
        return self._order.size

    def order(self, position: int) -> SampleLocation:
        return self._order.where(position)

    def _from(self, position: int) -> Iterator[tuple[SampleLocation, Any]]:
        for part in self._order.parts(position):
            indices = part.indices.tolist()
            read = 0
            for index, sample in zip(indices, self._shard(part)):
                yield SampleLocation(part.pass_number, part.shard, index), sample
                read += 1
            if read < len(indices):
                changed = EOFError(f"it has {len(indices) - read} samples fewer than when opened")
                raise self._failed(changed, part.shard)

    @abc.abstractmethod
    def _shard(self, part: ShardPart) -> Iterator[Any]:
        """The samples of a part, in its order."""

    def _set_order(
        self, sizes: Sequence[int] | Int64Array, *, shuffle_samples: bool = True
    ) -> None:
        """Orders shards of these sizes as the source demands; refuses a source without samples."""
        shuffle = self.source.shuffle is not False
        self._order = ShardOrder(
            sizes,
            seed=self.seed,
            name=self.source.name,
            shuffle_shards=shuffle,
            shuffle_samples=shuffle and shuffle_samples,
        )
        if not self.size:
            raise ConfigurationError(
                f"source {self.source.name!r} has no samples ({self.source.data!r}); leave it out, "
                "or give it data"
            )


class FileReader(ShardedReader):
    """A source in files; each shard lies in one of them."""

    _file_of: Int64Array
    """[shards] number of its file in `_files`."""

    def _file(self, shard: int) -> SourceFile:
        return self._files[int(self._file_of[shard])]

    def _content(self) -> Mapping[str, Any]:
        counts = np.bincount(self._file_of, self._order.sizes, len(self._files)).astype(int)
        listed = [(f.name, f.size, n) for f, n in zip(self._files, counts.tolist())]
        return {
            "format": self.source.kind,
            "files": len(listed),
            "samples": self.size,
            "digest": digest([*listed, *self._layout()]),
        }

    def _layout(self) -> Sequence[object]:
        """What else decides which samples a shard has."""
        return ()

    def _shard_name(self, shard: int) -> str:
        return self._file(shard).path


def fields_of(sample: Any, source: Source, what: str = "field") -> Any:
    """The sample with the columns that its source names; `what` one is, for errors."""
    if source.columns is None:
        return sample
    if not isinstance(sample, Mapping):
        raise SampleError(
            f"columns={list(source.columns)} of a {type(sample).__name__}; only mappings have them"
        )
    missing = [name for name in source.columns if name not in sample]
    if missing:
        raise KeyError(f"no {what} {missing[0]!r}; it has {', '.join(map(str, sample))}")
    return {name: sample[name] for name in source.columns}
