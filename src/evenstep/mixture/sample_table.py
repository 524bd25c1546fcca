"""`SampleTable`: what a planner knows about samples. Columns of numbers, never payload.

A sample has two names. Its *position* in the order of its source (0, 1, 2, ... over all passes)
determines when it is drawn, and no two draws share it. Its *identity* (source, shard, index) is
where it is stored; a source that is read twice has the same identity at two positions.

Invariant: all columns have one entry per sample, in the order drawn, and a table never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.value_checks import check_schema, require

Int32Array = npt.NDArray[np.int32]
Units = npt.NDArray[np.object_]
"""[samples] tuples of the lengths of each sample's units, such as its images; None for a sample
whose units were not measured."""

BAD = -1
"""The lengths of a sample that cannot be used, which a mixture passes over."""

_COLUMNS = ("source", "position", "shard", "index")
_DTYPES = {"source": np.int32, "position": np.int64, "shard": np.int32, "index": np.int64}
_UNIT = range(1, 2**63)
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
    units: Mapping[str, Units] = field(default_factory=dict)
    """By modality that is measured unit by unit, such as image by image. They add up to `lengths`.
    """

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
        units: Mapping[str, Units] | None = None,
    ) -> SampleTable:
        """A table of columns that are known to be right, such as those of another table.

        Args:
            sources: names by number.
            columns: "source", "position", "shard" and "index", in their types.
            lengths, units: by modality.
        """
        table = object.__new__(cls)
        table.__dict__.update(columns, sources=sources, lengths=lengths, units=units or {})
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
        units = {
            name: np.concatenate(
                [table.units.get(name, unmeasured(len(table))) for table in tables]
            )
            for name in dict.fromkeys(name for table in tables for name in table.units)
        }
        return cls.unchecked(sources, columns, lengths, units)

    def __getstate__(self) -> tuple[Any, ...]:
        # As few arrays: tables are sent between processes in each step.
        columns = [getattr(self, name) for name in _COLUMNS]
        table = np.stack([*columns, *self.lengths.values()])
        units = {name: _flat(column) for name, column in self.units.items()}
        return self.sources, tuple(self.lengths), table, units

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        sources, names, columns, units = state
        for name, column in zip(_COLUMNS, columns):
            self.__dict__[name] = column.astype(_DTYPES[name], copy=False)
        lengths = dict(zip(names, columns[len(_COLUMNS) :]))
        units = {name: _of_flat(*flat) for name, flat in units.items()}
        self.__dict__.update(sources=sources, lengths=lengths, units=units)

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
        units = {name: column[taken] for name, column in self.units.items()}
        return SampleTable.unchecked(self.sources, columns, lengths, units)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampleTable):
            return NotImplemented
        return (
            self.sources == other.sources
            and self.lengths.keys() == other.lengths.keys()
            and all(np.array_equal(getattr(self, n), getattr(other, n)) for n in _COLUMNS)
            and all(np.array_equal(c, other.lengths[n]) for n, c in self.lengths.items())
            and self.units.keys() == other.units.keys()
            and all(c.tolist() == other.units[n].tolist() for n, c in self.units.items())
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

    def measured(self, modality: str) -> list[int | tuple[int, ...]]:
        """[samples] what was measured of each: the lengths of its units, or that of all of it."""
        whole: list[int | tuple[int, ...]] = self.lengths[modality].tolist()
        if modality not in self.units:
            return whole
        return [n if each is None else each for n, each in zip(whole, self.units[modality])]

    def one_by_one(self, modality: str) -> tuple[SampleTable, Int64Array]:
        """A table with a row for each unit of each sample, in order, which has this modality alone;
        and [units] the row of the sample that each is of.

        Raises:
            SampleError: units of a sample were not measured.
        """
        measured = self.measured(modality)
        for row, each in enumerate(measured):
            if isinstance(each, int) and each > 0:
                raise SampleError(
                    f"one_by_one: {modality} of sample {self.identity(row)} was measured as one "
                    f"length, {each:,}; let the function of modality {modality!r} in "
                    "MeasureOptions return the list of its parts' lengths, as "
                    "evenstep.batch.patches_of_each does for images"
                )
        units = [each if isinstance(each, tuple) else () for each in measured]
        rows = np.arange(len(self)).repeat([len(each) for each in units])
        lengths = np.array([length for each in units for length in each], np.int64)
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return SampleTable.unchecked(self.sources, columns, {modality: lengths}), rows

    def keys(self) -> Int64Array:
        """[samples] source and position as one number, different for each draw."""
        keys: Int64Array = (self.source.astype(np.int64) << 40) + self.position
        return keys

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers, for JSON. Exact."""
        units = {
            name: [None if each is None else list(each) for each in column]
            for name, column in self.units.items()
        }
        return {
            "sources": list(self.sources),
            **{name: getattr(self, name).tolist() for name in _COLUMNS},
            "lengths": {name: column.tolist() for name, column in self.lengths.items()},
            **({"units": units} if units else {}),
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
        units = given.get("units", {})
        check_schema(units, {str: [([_UNIT], None)]}, "units")
        for name, each in units.items():
            require(name in lengths and len(each) == len(lengths[name]), "units", name)
            known = zip(each, lengths[name].tolist())
            require(
                all(u is None or sum(u) == length for u, length in known), f"units.{name}", each
            )
        return cls(
            sources=tuple(given["sources"]),
            lengths=lengths,
            units={name: units_of(each) for name, each in units.items()},
            **columns,
        )


def units_of(lengths: Iterable[Sequence[int] | None]) -> Units:
    """A column of `SampleTable.units`."""
    column: list[tuple[int, ...] | None] = [None if e is None else tuple(e) for e in lengths]
    return np.fromiter(column, np.object_, len(column))


def unmeasured(samples: int) -> Units:
    """The column of samples whose units were not measured."""
    return np.full(samples, None, np.object_)


def _flat(units: Units) -> tuple[Int64Array, Int64Array]:
    """[samples] how many units each has, -1 if unknown; and the lengths of all units."""
    counts = [-1 if each is None else len(each) for each in units]
    return np.array(counts, np.int64), np.array([n for each in units for n in each or ()], np.int64)


def _of_flat(counts: Int64Array, lengths: Int64Array) -> Units:
    ends = counts.clip(min=0).cumsum().tolist()
    values = lengths.tolist()
    return units_of(
        None if count < 0 else values[end - count : end]
        for count, end in zip(counts.tolist(), ends)
    )


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
