"""Parquet: a shard is a row group, of which as many rows are decoded at once as there is room for.

The rows of a row group come in random order, so reading any of them means decoding all of it; only
the rows that come next are kept. All sources of a process share the memory for them. Where it
suffices, each row group is decoded once, and otherwise once for each part that fits. A source that
is not read from loses its rows after a while, and decodes them again when it resumes. Files are
open only while they are decoded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.file_index import kept_indices
from evenstep.data.reader import FileReader
from evenstep.data.row_groups import LocalCopy, RowSlice, SizedCache
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import Source
from evenstep.data.source_files import (
    SourceFile,
    list_files,
    not_opened,
    optional_package,
)
from evenstep.data.storage import Result, check_unchanged, retried
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import require

DECODED: SizedCache[RowSlice | None] = SizedCache(128 << 20)
"""Rows of this process that are decoded and come next."""
_COPIES: SizedCache[tuple[int, LocalCopy]] = SizedCache(4 << 30)
"""Shard, and the part of its file, of each reader that decodes a row group of another machine more
than once. On disk."""
_FOOTERS: SizedCache[Any] = SizedCache(16 << 20)
_FOOTER_MEMORY = 10
"""Bytes that a footer takes for each byte of it in the file."""
_BUFFER = 1 << 20
"""Bytes read at once of a column, so that memory never holds a whole compressed column in addition
to the decoded one. `pre_buffer`, pyarrow's default, would hold all columns at once."""
_BATCH_BYTES, _BATCH_ROWS = 1 << 20, 2048
"""Decoded at once where there is no room for all."""
_unused = 0
_UNUSED = 4 << 20
"""Bytes that the allocator may keep after they were freed: getting them back from the system takes
longer than decoding."""


class ParquetReader(FileReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source, seed)
        self._arrow = optional_package(source, "pyarrow", "parquet")
        self._parquet = self._arrow.parquet
        self._files = list_files(source)
        self._key = object()  # of this reader, in caches
        entries = kept_indices(self._files, "rows of row groups, schema", self._indexed)
        schemas, rows = self._unpacked(entries)
        sizes = np.concatenate(rows)
        groups = [(n, group) for n, found in enumerate(rows) for group in range(len(found))]
        self._columns = self._checked_columns(schemas)
        self._groups = np.array(groups, np.int64).reshape(-1, 2)
        self._file_of = self._groups[:, 0]
        self._set_order(sizes)
        DECODED.put(self._key, None, 0)
        for cache in (DECODED, _COPIES):
            weakref.finalize(self, cache.drop, self._key)

    def close(self) -> None:
        self._drop_rows()
        for file in self._files:
            _FOOTERS.drop((self._key, file.path))
        self._note_freed(_UNUSED)

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        at = 0
        try:
            while at < len(part.indices):
                rows = DECODED.get(self._key)
                # A reader that comes back to a row group, further on, finds what it had decoded.
                if not rows or not rows.skip_to(part.position + at):
                    rows = self._decoded(part, at)
                table = rows.pop()
                DECODED.put(self._key, rows, rows.size)
                del rows
                samples = self._samples(table)
                self._note_freed(table.nbytes)
                del table
                samples.reverse()
                while samples:
                    sample = samples.pop()
                    if isinstance(sample, Exception):
                        raise self._failed(sample, part.shard, int(part.indices[at])) from sample
                    at += 1
                    yield sample
        except GeneratorExit:
            raise
        except BaseException:
            self._drop_rows()
            raise
        self._drop_rows()

    def _drop_rows(self) -> None:
        DECODED.drop(self._key)
        _COPIES.drop(self._key)

    def _samples(self, table: Any) -> list[Any]:
        """[rows] a sample each, or what it raises."""
        try:
            return list(table.to_pylist())
        except Exception:  # text that is not UTF-8, years that Python lacks
            return [_sample(table.slice(row, 1)) for row in range(table.num_rows)]

    def _decoded(self, part: ShardPart, at: int) -> RowSlice:
        """The rows of a part from one on that there is room for."""
        try:
            return self._retried(self._file(part.shard), partial(self._decode, part, at))
        except Exception as error:  # file systems raise their own types
            raise self._failed(error, part.shard) from error

    def _decode(self, part: ShardPart, at: int) -> RowSlice:
        number, group = self._groups[part.shard].tolist()
        with ExitStack() as opened:
            footer = self._footer(self._files[number])
            stored, room = footer.row_group(group), DECODED.share
            columns = self._column_chunks(stored)
            size = 1 + sum(column.total_uncompressed_size for column in columns)
            rows = stored.num_rows
            whole = 2 * size <= room  # more than that when decoded, where text repeats
            if not whole:
                rows = max(min(rows * _BATCH_BYTES // size, _BATCH_ROWS), 1)
            where: Any = self._files[number]
            if not where.local and not (whole and not at):
                where = self._copy(part.shard, columns).file
            file = self._open(where, opened, footer)
            batches = file.iter_batches(
                rows, row_groups=[group], columns=self._columns, use_threads=False
            )
            indices, position = part.indices[at:], part.position + at
            made = RowSlice(self._arrow, batches, indices, position, room)
        self._note_freed(size)
        return made

    def _retried(self, file: SourceFile, attempt: Callable[[], Result]) -> Result:
        """What `attempt` returns. Files of this machine are read by pyarrow, so they are tried
        again as a whole, and checked; of others, `StorageFile` does so for each read."""

        def checked() -> Result:
            found = attempt()
            if file.local:
                check_unchanged(file)
            return found

        return retried(file.path, checked, patience=file.patience, local=True)

    def _note_freed(self, size: int) -> None:
        """Returns freed memory to the system; Arrow would keep a row group for each source."""
        global _unused
        _unused += size
        if _unused >= _UNUSED:
            _unused = 0
            self._arrow.default_memory_pool().release_unused()

    def _open(self, where: Any, opened: ExitStack, footer: Any = None) -> Any:
        """
        Args:
            where: a file of the source, or a copy of its parts.
        """
        if isinstance(where, SourceFile):
            where = where.path if where.local else opened.enter_context(where.open())
        return opened.enter_context(
            self._parquet.ParquetFile(
                where, metadata=footer, buffer_size=_BUFFER, pre_buffer=False, memory_map=False
            )
        )

    def _column_chunks(self, stored: Any) -> list[Any]:
        """Those of a row group that are read."""
        chunks = [stored.column(n) for n in range(stored.num_columns)]
        if self._columns is None:
            return chunks
        wanted = tuple(f"{name}." for name in self._columns)
        return [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(wanted)]

    def _copy(self, shard: int, columns: list[Any]) -> LocalCopy:
        kept = _COPIES.get(self._key)
        if kept is not None and kept[0] == shard:
            return kept[1]
        parts = []
        for column in columns:
            begin = min(column.dictionary_page_offset or 1 << 62, column.data_page_offset)
            parts.append((begin, begin + column.total_compressed_size))
        copy = LocalCopy(self._file(shard), parts)
        _COPIES.put(self._key, (shard, copy), sum(end - begin for begin, end in parts))
        return copy

    def _footer(self, file: SourceFile) -> Any:
        footer = _FOOTERS.get((self._key, file.path))
        if footer is None:
            footer = self._retried(file, partial(self._read_footer, file))
            _FOOTERS.put((self._key, file.path), footer, _FOOTER_MEMORY * footer.serialized_size)
        return footer

    def _read_footer(self, file: SourceFile) -> Any:
        with ExitStack() as opened:
            return self._open(file, opened).metadata

    def _indexed(self, file: SourceFile) -> bytes:
        """How many row groups a file has, the rows of each, and the schema."""
        try:
            footer = self._footer(file)
            rows = [footer.row_group(g).num_rows for g in range(footer.num_row_groups)]
            require(min(rows, default=0) >= 0, "rows of row groups", rows)
            schema = footer.schema.to_arrow_schema().remove_metadata()
            return np.array([len(rows), *rows], np.int64).tobytes() + bytes(schema.serialize())
        except Exception as error:
            what = f"{file.path} cannot be read as Parquet"
            raise not_opened(self.source, what, error) from error

    def _unpacked(self, entries: Sequence[bytes]) -> tuple[list[Any], list[Int64Array]]:
        """Of each file, the schema, which is one object where files have the same, and the rows of
        each row group."""
        schemas, rows, known = [], [], {}
        for entry in entries:
            count = int(np.frombuffer(entry, np.int64, 1)[0])
            rows.append(np.frombuffer(entry, np.int64, count, 8))
            stored = entry[8 * (count + 1) :]
            if stored not in known:
                known[stored] = self._arrow.ipc.read_schema(self._arrow.py_buffer(stored))
            schemas.append(known[stored])
        return schemas, rows

    def _checked_columns(self, schemas: list[Any]) -> list[str] | None:
        first = schemas[0]
        wanted = self.source.columns
        for name in wanted or ():
            if name not in first.names:
                raise ConfigurationError(
                    f"source {self.source.name!r}: {self._files[0].path} has no column {name!r}; "
                    f"it has {', '.join(first.names)}"
                )
        names = list(wanted) if wanted is not None else first.names
        for file, schema in zip(self._files, schemas):
            if schema is first:
                continue
            for name in names if wanted is not None else dict.fromkeys([*names, *schema.names]):
                here = schema.field(name).type if name in schema.names else None
                there = first.field(name).type if name in first.names else None
                if here != there:
                    raise ConfigurationError(
                        f"source {self.source.name!r}: column {name!r} is {here or 'absent'} in "
                        f"{file.path} and {there or 'absent'} in {self._files[0].path}; make two "
                        "sources of them, or name in columns= those that they share"
                    )
        return None if wanted is None else names

    def _layout(self) -> Sequence[object]:
        return (self._order.sizes.tolist(),)

    def _shard_name(self, shard: int) -> str:
        return f"row group {self._groups[shard][1]} of {self._file(shard).path}"


def _sample(row: Any) -> Any:
    """The sample of a table of one row, or what it raises."""
    try:
        return row.to_pylist()[0]
    except Exception as error:
        return error
