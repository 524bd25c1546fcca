"""`SampleTable`: what a planner knows of samples. Columns of numbers, never payload.

A sample has two names. Its *position* in the order of its source (0, 1, 2, ... over all passes)
says which one is next to be drawn, and no two draws share it. Its *identity* (source, shard, index)
says where it lies; a source that is read twice shows the same identity at two positions.

Invariant: all columns have one entry for each sample, in the order in which samples were drawn, and
nothing in a table changes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError

__all__ = [
    "BufferedMetadata",
    "BulkMetadata",
    "Metadata",
    "SampleId",
    "SampleTable",
    "ahead_of_many",
]

Int32Array = npt.NDArray[np.int32]

_COLUMNS = ("source", "position", "shard", "index")
_DTYPES = {"source": np.int32, "position": np.int64, "shard": np.int32, "index": np.int64}


@dataclass(frozen=True, order=True)
class SampleId:
    """Where a sample lies."""

    source: str
    shard: int
    index: int

    def __str__(self) -> str:
        return f"{self.source}[{self.shard}][{self.index}]"


@dataclass(frozen=True, eq=False, repr=False)
class SampleTable:
    """Metadata of samples, in columns."""

    sources: tuple[str, ...]
    """Names that `source` counts."""
    source: Int32Array
    """[samples] int32."""
    position: Int64Array
    """[samples] int64 in the order of the source, over all its passes."""
    shard: Int32Array
    """[samples] int32, such as a row group or a file."""
    index: Int64Array
    """[samples] int64 within the shard."""
    lengths: Mapping[str, Int64Array]
    """By modality, [samples] int64: tokens of text, patches of images; 0 for a sample that has
    none of it."""

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            column: npt.NDArray[Any] = np.asarray(getattr(self, name), _DTYPES[name])
            object.__setattr__(self, name, column)
            if column.shape != self.source.shape or column.ndim != 1:
                raise ConfigurationError(
                    f"{name} of shape {column.shape} must be [samples], as source of shape "
                    f"{self.source.shape}"
                )
        lengths = {name: np.asarray(column, np.int64) for name, column in self.lengths.items()}
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "sources", tuple(self.sources))
        for name, column in lengths.items():
            if column.shape != self.source.shape:
                raise ConfigurationError(
                    f"lengths of {name!r} of shape {column.shape} must be one for each of the "
                    f"{len(self.source):,} samples"
                )
            if len(column) and column.min() < 0:
                row = int(column.argmin())
                raise ConfigurationError(
                    f"length {column[row]} of {name!r} of sample {self.identity(row)} must not be "
                    "negative"
                )
        if len(self) and not 0 <= self.source.min() <= self.source.max() < len(self.sources):
            raise ConfigurationError(
                f"source numbers from {self.source.min()} to {self.source.max()} must count the "
                f"{len(self.sources)} sources"
            )

    @classmethod
    def unchecked(
        cls,
        sources: tuple[str, ...],
        columns: Mapping[str, npt.NDArray[Any]],
        lengths: Mapping[str, Int64Array],
    ) -> SampleTable:
        """Of columns that are right, such as those of another table: nothing is looked at.

        Args:
            columns: "source", "position", "shard" and "index", in their types.
        """
        table = object.__new__(cls)
        table.__dict__.update(columns, sources=sources, lengths=lengths)
        return table

    @classmethod
    def empty(cls, sources: Sequence[str], modalities: Sequence[str] = ()) -> SampleTable:
        """No samples of these sources."""
        columns = {name: np.empty(0, _DTYPES[name]) for name in _COLUMNS}
        lengths = dict.fromkeys(modalities, np.empty(0, np.int64))
        return cls.unchecked(tuple(sources), columns, lengths)

    @classmethod
    def concatenate(cls, tables: Sequence[SampleTable]) -> SampleTable:
        """One after the other; a modality that a table lacks has length 0 in it.

        Raises:
            ConfigurationError: no table, or tables that count different sources.
        """
        if not tables:
            raise ConfigurationError("nothing to concatenate; see SampleTable.empty")
        sources = tables[0].sources
        if any(table.sources is not sources and table.sources != sources for table in tables):
            raise ConfigurationError(
                "tables count different sources; give every table the same tuple of all sources"
            )
        if len(tables) == 1:
            return tables[0]
        modalities = dict.fromkeys(name for table in tables for name in table.lengths)
        columns = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS
        }
        lengths = {
            name: np.concatenate(
                [table.lengths.get(name, np.zeros(len(table), np.int64)) for table in tables]
            )
            for name in modalities
        }
        return cls.unchecked(sources, columns, lengths)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{name} {c.sum():,}" for name, c in self.lengths.items())
        return f"<{len(self):,} samples of {len(self.sources):,} sources: {tokens or 'no lengths'}>"

    def __getitem__(self, rows: slice | npt.NDArray[Any] | Sequence[int]) -> SampleTable:
        """The samples of a slice, of a mask or of row numbers, in that order."""
        taken = rows
        if not isinstance(rows, slice):
            taken = np.asarray(rows)
            if taken.ndim != 1:
                raise ConfigurationError(
                    f"rows of shape {taken.shape} must be one mask or a list of row numbers"
                )
            if not len(taken):
                taken = taken.astype(np.int64)
        columns = {name: getattr(self, name)[taken] for name in _COLUMNS}
        lengths = {name: column[taken] for name, column in self.lengths.items()}
        return SampleTable.unchecked(self.sources, columns, lengths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampleTable):
            return NotImplemented
        return (
            self.sources == other.sources
            and self.lengths.keys() == other.lengths.keys()
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in _COLUMNS)
            and all(np.array_equal(c, other.lengths[n]) for n, c in self.lengths.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def identity(self, row: int) -> SampleId:
        """Where the sample of a row lies."""
        return SampleId(self.sources[self.source[row]], int(self.shard[row]), int(self.index[row]))

    def counts(self) -> Int64Array:
        """[sources] samples of each."""
        return np.bincount(self.source, minlength=len(self.sources))

    def tokens(self, modalities: Iterable[str]) -> Int64Array:
        """[samples] lengths in these modalities, added up."""
        total = np.zeros(len(self), np.int64)
        for name in modalities:
            total = total + self.lengths[name]
        return total

    def keys(self) -> Int64Array:
        """[samples] source and position as one number, different for each draw."""
        keys: Int64Array = (self.source.astype(np.int64) << 40) + self.position
        return keys

    # Outside of memory

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers, for JSON. Exact."""
        return {
            "sources": list(self.sources),
            **{name: getattr(self, name).tolist() for name in _COLUMNS},
            "lengths": {name: column.tolist() for name, column in self.lengths.items()},
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> SampleTable:
        """Of what `to_dict` made."""
        columns: dict[str, Any] = {n: np.asarray(given[n], _DTYPES[n]) for n in _COLUMNS}
        lengths = {name: np.asarray(c, np.int64) for name, c in given["lengths"].items()}
        return cls(sources=tuple(given["sources"]), lengths=lengths, **columns)

    def to_bytes(self) -> bytes:
        """Columns in as few bytes for each entry as their values need; the smallest value of a
        column is counted from. Exact."""
        columns = [*(getattr(self, name) for name in _COLUMNS), *self.lengths.values()]
        header, data = [], []
        for column in columns:
            low = int(column.min()) if len(column) else 0
            span = int(column.max()) - low if len(column) else 0
            width = next((w for w in (1, 2, 4) if span < 1 << (8 * w)), 8)
            header.append([low, width])
            data.append((column.astype(np.int64) - low).astype(f"<u{width}").tobytes())
        head = json.dumps(
            {
                "sources": self.sources,
                "modalities": list(self.lengths),
                "samples": len(self),
                "columns": header,
            },
            separators=(",", ":"),
        ).encode()
        return b"".join([struct.pack("<I", len(head)), head, *data])

    @classmethod
    def from_bytes(cls, data: bytes) -> SampleTable:
        """Of what `to_bytes` made."""
        (size,) = struct.unpack_from("<I", data)
        head = json.loads(data[4 : 4 + size])
        at, columns = 4 + size, []
        for low, width in head["columns"]:
            column = np.frombuffer(data, f"<u{width}", head["samples"], at)
            columns.append(column.astype(np.int64) + low)
            at += width * head["samples"]
        numbers: dict[str, Any] = {n: c.astype(_DTYPES[n]) for n, c in zip(_COLUMNS, columns)}
        lengths = dict(zip(head["modalities"], columns[len(_COLUMNS) :]))
        return cls(sources=tuple(head["sources"]), lengths=lengths, **numbers)


class Metadata(Protocol):
    """Says what the next samples of a source are: the Source Loaders' buffers, or an array."""

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """The samples of a source from a position on: `count` of them, waiting for them if need
        be, and fewer only where the source ends."""
        ...


@runtime_checkable
class BulkMetadata(Metadata, Protocol):
    """One that can be asked for many sources at once, which is faster where there are hundreds."""

    def ahead_of_many(
        self, sources: Int64Array, positions: Int64Array, counts: Int64Array
    ) -> SampleTable:
        """What `ahead` gives for each, one behind the other.

        Args:
            sources: [n] ascending, each once.
            positions, counts: [n] of each.
        """
        ...


def ahead_of_many(
    metadata: Metadata, sources: Int64Array, positions: Int64Array, counts: Int64Array
) -> SampleTable:
    """See `BulkMetadata`; of any metadata. `sources` has at least one."""
    if isinstance(metadata, BulkMetadata):
        return metadata.ahead_of_many(sources, positions, counts)
    asked = zip(sources.tolist(), positions.tolist(), counts.tolist())
    return SampleTable.concatenate([metadata.ahead(*each) for each in asked])


@dataclass(frozen=True)
class BufferedMetadata:
    """`Metadata` out of one table: what is buffered is all there is."""

    buffered: SampleTable

    @cached_property
    def _ordered(self) -> SampleTable:
        """By source, of each by position."""
        return self.buffered[np.lexsort((self.buffered.position, self.buffered.source))]

    @cached_property
    def _ends(self) -> Int64Array:
        """[sources + 1] where those of a source begin there, and all end."""
        return np.append(0, self.buffered.counts().cumsum())

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        ordered = self._ordered
        first, last = self._ends[source : source + 2].tolist()
        begin, end = ordered.position[first:last].searchsorted((position, position + count))
        return ordered[first + begin : first + end]
