"""`SampleTable`: what a planner knows about samples. Columns of numbers, never payload.

A sample has two names. Its *position* in the order of its source (0, 1, 2, ... over all passes)
determines when it is drawn, and no two draws share it. Its *identity* (source, shard, index) is
where it is stored; a source that is read twice has the same identity at two positions.

Invariant: all columns have one entry per sample, in the order drawn, and a table never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_schema, require

Int32Array = npt.NDArray[np.int32]

BAD = -1
"""The lengths of a sample that cannot be used, which a mixture passes over."""

_COLUMNS = ("source", "position", "shard", "index")
_DTYPES = {"source": np.int32, "position": np.int64, "shard": np.int32, "index": np.int64}
_SCHEMA = {
    "sources": [str],
    "source": [range(2**31)],
    "position": [range(2**63)],
    "shard": [range(-1, 2**31)],
    "index": [range(2**63)],
    "lengths": {str: [range(2**63)]},
}


class SampleId(NamedTuple):
    """Where a sample is stored."""

    source: str
    shard: int
    index: int  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.source}[{self.shard}][{self.index}]"


@dataclass(frozen=True, eq=False, repr=False)
class SampleTable:
    """Metadata of samples, in columns."""

    sources: tuple[str, ...]
    """Names by number, as in `source`."""
    source: Int32Array
    """[samples] int32 number of the source."""
    position: Int64Array
    """[samples] int64 position in the order of the source, over all its passes."""
    shard: Int32Array
    """[samples] int32 number of the shard, such as a row group or a file."""
    index: Int64Array
    """[samples] int64 within the shard."""
    lengths: Mapping[str, Int64Array]
    """By modality, [samples] int64: tokens of text, patches of images; 0 for a sample without the
    modality."""

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
        wrong = [name for name, column in lengths.items() if column.shape != self.source.shape]
        if wrong:
            raise ConfigurationError(
                f"lengths of {wrong[0]!r} must be one for each of the {len(self.source):,} samples"
            )

    @classmethod
    def unchecked(
        cls,
        sources: tuple[str, ...],
        columns: Mapping[str, npt.NDArray[Any]],
        lengths: Mapping[str, Int64Array],
    ) -> SampleTable:
        """A table of columns that are known to be right, such as those of another table.

        Args:
            sources: names by number.
            columns: "source", "position", "shard" and "index", in their types.
            lengths: by modality.
        """
        table = object.__new__(cls)
        table.__dict__.update(columns, sources=sources, lengths=lengths)
        return table

    @classmethod
    def empty(cls, sources: Sequence[str], modalities: Sequence[str] = ()) -> SampleTable:
        """A table of these sources without samples."""
        columns = {name: np.empty(0, _DTYPES[name]) for name in _COLUMNS}
        lengths = dict.fromkeys(modalities, np.empty(0, np.int64))
        return cls.unchecked(tuple(sources), columns, lengths)

    @classmethod
    def concatenate(cls, tables: Sequence[SampleTable]) -> SampleTable:
        """Tables one after the other; a modality that a table lacks has length 0 there.

        Raises:
            ConfigurationError: tables that count different sources.
        """
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

    def __getstate__(self) -> tuple[tuple[str, ...], tuple[str, ...], Int64Array]:
        # As one array: tables are sent between processes in each step.
        columns = [getattr(self, name) for name in _COLUMNS]
        return self.sources, tuple(self.lengths), np.stack([*columns, *self.lengths.values()])

    def __setstate__(self, state: tuple[tuple[str, ...], tuple[str, ...], Int64Array]) -> None:
        sources, names, columns = state
        for name, column in zip(_COLUMNS, columns):
            self.__dict__[name] = column.astype(_DTYPES[name], copy=False)
        lengths = dict(zip(names, columns[len(_COLUMNS) :]))
        self.__dict__.update(sources=sources, lengths=lengths)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{name} {c.sum():,}" for name, c in self.lengths.items())
        return f"<{len(self):,} samples of {len(self.sources):,} sources: {tokens or 'no lengths'}>"

    def __getitem__(self, rows: slice | npt.NDArray[Any] | Sequence[int]) -> SampleTable:
        """The samples that a slice, a mask or row numbers select, in that order."""
        taken = rows
        if not isinstance(rows, slice):
            taken = np.asarray(rows) if len(rows) else np.empty(0, np.int64)
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
        """Where the sample of a row is stored."""
        return SampleId(self.sources[self.source[row]], int(self.shard[row]), int(self.index[row]))

    @property
    def bad(self) -> npt.NDArray[np.bool_]:
        """[samples] whether each cannot be used, which a provider says by lengths of `BAD`."""
        for column in self.lengths.values():
            return column < 0
        return np.zeros(len(self), np.bool_)

    def counts(self) -> Int64Array:
        """[sources] samples of each."""
        return np.bincount(self.source, minlength=len(self.sources))

    def tokens(self, modalities: Iterable[str]) -> Int64Array:
        """[samples] sum of the lengths in these modalities."""
        total = np.zeros(len(self), np.int64)
        for name in modalities:
            total = total + self.lengths[name]
        return total

    def keys(self) -> Int64Array:
        """[samples] source and position as one number, different for each draw."""
        keys: Int64Array = (self.source.astype(np.int64) << 40) + self.position
        return keys

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers, for JSON. Exact."""
        return {
            "sources": list(self.sources),
            **{name: getattr(self, name).tolist() for name in _COLUMNS},
            "lengths": {name: column.tolist() for name, column in self.lengths.items()},
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> SampleTable:
        """Inverse of `to_dict`.

        Raises:
            ConfigurationError, KeyError, TypeError, ValueError: it is not what `to_dict` returned.
        """
        check_schema(given, _SCHEMA)
        require(len(set(given["sources"])) == len(given["sources"]), "sources", given["sources"])
        columns: dict[str, Any] = {n: np.asarray(given[n], _DTYPES[n]) for n in _COLUMNS}
        lengths = {name: np.asarray(c, np.int64) for name, c in given["lengths"].items()}
        return cls(sources=tuple(given["sources"]), lengths=lengths, **columns)


class Metadata(Protocol):
    """Metadata of the next samples of each source, from Source Loaders or from an array."""

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """`count` samples of a source from a position on, fewer only at the end of the source. May
        block until they are known. Those with lengths of `BAD` are passed over."""
        ...


class BulkMetadata(Metadata, Protocol):
    """`Metadata` of many sources in one call, which is faster with hundreds of them."""

    def ahead_of_many(
        self, sources: Int64Array, positions: Int64Array, counts: Int64Array
    ) -> SampleTable:
        """The results of `ahead` for each source, one after the other.

        Args:
            sources: [n] ascending, each once.
            positions, counts: [n] for each.
        """
        ...


def look_ahead(
    metadata: Metadata, sources: Int64Array, positions: Int64Array, counts: Int64Array
) -> SampleTable:
    """`BulkMetadata.ahead_of_many` for any metadata; `sources` has at least one entry."""
    # `isinstance` would look through the protocol again in each step.
    of_many = getattr(metadata, "ahead_of_many", None)
    if of_many is not None:
        found: SampleTable = of_many(sources, positions, counts)
        return found
    asked = zip(sources.tolist(), positions.tolist(), counts.tolist())
    return SampleTable.concatenate([metadata.ahead(*each) for each in asked])


@dataclass(frozen=True)
class BufferedMetadata:
    """`Metadata` from one table, which has all samples."""

    buffered: SampleTable

    @cached_property
    def _ordered(self) -> SampleTable:
        """Sorted by source and position."""
        return self.buffered[np.lexsort((self.buffered.position, self.buffered.source))]

    @cached_property
    def _ends(self) -> Int64Array:
        """[sources + 1] rows of source k are those from entry k to entry k + 1."""
        return np.append(0, self.buffered.counts().cumsum())

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        ordered = self._ordered
        first, last = self._ends[source : source + 2].tolist()
        begin, end = ordered.position[first:last].searchsorted((position, position + count))
        return ordered[first + begin : first + end]
