"""Parquet: a shard is a row group, and one row group is in memory.

Footers are read once, when the source is opened, and files are open only while a row group is read.
So a source that is not being read costs the memory of its footers; a file left open in the middle
would cost tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from evenstep.data.reader import ShardedReader
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import Source
from evenstep.data.source_files import SourceFile, digest, list_files, optional_package
from evenstep.errors import ConfigurationError, described

_BUFFER = 1 << 20
"""Bytes read at once of a column, so that a whole compressed column is never in memory beside the
decoded one. `pre_buffer`, pyarrow's default, would hold all columns at once."""
_ROWS = 64
"""Rows converted to Python objects at once."""


class ParquetReader(ShardedReader):
    """See the module docstring."""

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source, seed)
        self._arrow = optional_package(source, "pyarrow", "parquet")
        self._parquet = self._arrow.parquet
        self._files = list_files(source)
        self._footers = [self._footer(file) for file in self._files]
        self._columns = self._checked_columns()
        groups = [
            (file, group)
            for file, footer in enumerate(self._footers)
            for group in range(footer.num_row_groups)
        ]
        self._groups = np.array(groups, np.int64).reshape(-1, 2)
        rows = [self._footers[file].row_group(group).num_rows for file, group in groups]
        self._set_order(rows)

    def close(self) -> None:
        self._release()

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        table = self._row_group(part.shard)
        try:
            for begin in range(0, len(part.indices), _ROWS):
                # Not pyarrow.array, which imports pandas where it is installed: 40 MB per process.
                rows = part.indices[begin : begin + _ROWS]
                chosen = self._arrow.Array.from_buffers(
                    self._arrow.int64(), len(rows), [None, self._arrow.py_buffer(rows)]
                )
                try:
                    samples = table.take(chosen).to_pylist()
                except Exception as error:  # text that is not UTF-8, years that Python lacks
                    raise self._failed(error, part.shard) from error
                yield from samples
        finally:
            del table
            self._release()

    def _row_group(self, shard: int) -> Any:
        number, group = self._groups[shard].tolist()
        try:
            with ExitStack() as opened:
                file = self._open(self._files[number], opened, self._footers[number])
                table = file.read_row_group(group, columns=self._columns, use_threads=False)
            self._release()  # decoding needed several times as much
            return table
        except Exception as error:  # file systems raise their own types
            raise self._failed(error, shard) from error

    def _release(self) -> None:
        """Returns freed memory to the system; Arrow would keep a row group for each source."""
        self._arrow.default_memory_pool().release_unused()

    def _open(self, file: SourceFile, opened: ExitStack, footer: Any = None) -> Any:
        where = file.path if file.local else opened.enter_context(file.open())
        return opened.enter_context(
            self._parquet.ParquetFile(
                where, metadata=footer, buffer_size=_BUFFER, pre_buffer=False, memory_map=False
            )
        )

    def _footer(self, file: SourceFile) -> Any:
        try:
            with ExitStack() as opened:
                return self._open(file, opened).metadata
        except Exception as error:
            raise ConfigurationError(
                f"source {self.source.name!r}: {file.path} cannot be read as Parquet: "
                f"{described(error)}"
            ) from error

    def _checked_columns(self) -> list[str] | None:
        schemas = [footer.schema.to_arrow_schema() for footer in self._footers]
        first = schemas[0]
        wanted = self.source.columns
        for name in wanted or ():
            if name not in first.names:
                raise ConfigurationError(
                    f"source {self.source.name!r}: {self._files[0].path} has no column {name!r}; "
                    f"it has {', '.join(first.names)}"
                )
        names = list(wanted) if wanted is not None else first.names
        for file, schema in zip(self._files[1:], schemas[1:]):
            for name in names if wanted is not None else dict.fromkeys([*names, *schema.names]):
                here = schema.field(name).type if name in schema.names else None
                there = first.field(name).type if name in first.names else None
                if here != there:
                    raise ConfigurationError(
                        f"source {self.source.name!r}: column {name!r} is {_kind(here)} in "
                        f"{file.path} and {_kind(there)} in {self._files[0].path}; make two "
                        "sources of them, or name in columns= those that they share"
                    )
        return None if wanted is None else names

    def _content(self) -> Mapping[str, Any]:
        rows = [footer.num_rows for footer in self._footers]
        listed = [(file.name, file.size, count) for file, count in zip(self._files, rows)]
        return {
            "format": "parquet",
            "files": len(listed),
            "samples": self.size,
            "digest": digest([*listed, self._order.sizes.tolist()]),
        }

    def _shard_name(self, shard: int) -> str:
        number, group = self._groups[shard].tolist()
        return f"row group {group} of {self._files[number].path}"


def _kind(found: Any) -> str:
    return "absent" if found is None else str(found)
