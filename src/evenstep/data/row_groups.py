"""What Parquet readers hold of row groups: rows that come next, and copies of remote row groups.

A row group is decoded a few rows at a time, and those that come next are kept, as many as there is
room for. So no row group is in memory as a whole unless there is room for all of its rows.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.source_files import SourceFile

Value = TypeVar("Value")
_IDLE = 32


class SizedCache(Generic[Value]):
    """Values by key, each with its size, up to a number of bytes. Any thread may use it. A value
    remains usable after it was dropped here.

    A value is dropped when the limit is exceeded and all others were used more recently, or when
    the others were used 32 times each, on average, since its last use.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Value, size and the use that was the last; least recently used first.
        self._entries: dict[object, tuple[Value, int, int]] = {}
        self.size = 0
        """Bytes that are kept."""
        self._uses = 0
        # Reentrant, as what drops a value may be a garbage collection in the middle of the below.
        self._lock = threading.RLock()

    def get(self, key: object) -> Value | None:
        """The value of a key; None if it was never put here, or was dropped."""
        with self._lock:
            if key not in self._entries:
                return None
            value, size, _ = self._entries.pop(key)
            self._use(key, value, size)
            return value

    def put(self, key: object, value: Value, size: int) -> None:
        """Keeps a value, in place of what the key had, unless it is larger than the limit."""
        dropped = []  # freed after the lock is, as that takes a while
        with self._lock:
            dropped.append(self._pop(key))
            self.size += size
            self._use(key, value, size)
            idle = self._uses - _IDLE * len(self._entries)
            while self._entries:
                oldest, (*_, used) = next(iter(self._entries.items()))
                if self.size <= self.limit and used > idle:
                    break
                dropped.append(self._pop(oldest))

    def drop(self, key: object) -> None:
        """Idempotent."""
        with self._lock:
            dropped = self._pop(key)
        del dropped

    @property
    def share(self) -> int:
        """The part of the limit that each value may take if all take the same."""
        return self.limit // max(len(self._entries), 1)

    def _use(self, key: object, value: Value, size: int) -> None:
        self._uses += 1
        self._entries[key] = value, size, self._uses

    def _pop(self, key: object) -> object:
        entry = self._entries.pop(key, None)
        self.size -= 0 if entry is None else entry[1]
        return entry


_PIECE = 8 << 20  # bytes that are in memory while they are copied


class LocalCopy:
    """Parts of a remote file, fetched once: a sparse temporary file without a name that has them at
    the same places. It is removed with this object."""

    def __init__(self, original: SourceFile, parts: Iterable[tuple[int, int]]) -> None:
        """
        Args:
            parts: first byte of each, and the one after its last.
        """
        self.file = tempfile.TemporaryFile(prefix="evenstep-")  # noqa: SIM115  see __del__
        self.file.truncate(original.size)
        with original.open() as opened:
            for begin, end in parts:
                opened.seek(begin)
                self.file.seek(begin)
                while piece := opened.read(min(_PIECE, end - self.file.tell())):
                    self.file.write(piece)
        self.file.flush()

    def __del__(self) -> None:
        with suppress(AttributeError):  # where there is no room for temporary files
            self.file.close()


_CHUNK_ROWS, _CHUNK_BYTES = 64, 1 << 17
"""Rows that become Python objects at once, which are not counted as kept."""
_TABLE_BYTES = 1 << 20
"""Rows that are kept as one allocation and freed together. Of smaller ones the allocator would put
many into pages that it returns to the system only when all of them are free."""


class RowSlice:
    """The next rows of a row group, in an order of their own, picked while it is decoded."""

    def __init__(
        self, arrow: Any, batches: Iterator[Any], indices: Int64Array, position: int, room: int
    ) -> None:
        """
        Args:
            arrow: pyarrow.
            batches: the record batches of the row group, from its beginning.
            indices: [rows] rows of the row group, at least one, in any order. As many of them are
                kept as there is room for, and at least the first.
            position: in the source's order, of the first.
            room: bytes, by the size of the rows of the first batch.
        """
        picked: list[Any] = []
        begin = 0
        for batch in batches:
            rows = batch.num_rows
            if not begin:
                row_bytes = max(batch.nbytes // max(rows, 1), 1)
                indices = indices[: max(room // row_bytes, 1)]
                order = indices.argsort()  # [rows] in stored order
                stored = indices[order]
            first, last = stored.searchsorted([begin, begin + rows])
            if last - first < rows:
                batch = batch.take(_array(arrow, stored[first:last] - begin))
            picked.append(batch)
            begin += rows
        if not begin or stored[-1] >= begin:
            raise EOFError(f"it has {begin} rows, fewer than when it was opened")
        table = arrow.Table.from_batches(picked).combine_chunks()
        picked.clear()
        turn = np.empty(len(order), np.int64)  # [rows] where each lies in the table
        turn[order] = np.arange(len(order))
        step = max(_TABLE_BYTES // row_bytes, 1)
        self._tables = deque(
            table.take(_array(arrow, turn[at : at + step])) for at in range(0, len(order), step)
        )
        self._chunk = min(max(_CHUNK_BYTES // row_bytes, 1), _CHUNK_ROWS)
        self._popped = 0  # rows of the first table
        self.position = position
        """Of the next row."""
        self.size = sum(table.nbytes for table in self._tables)
        """Bytes of the rows that are left."""

    def __len__(self) -> int:
        """Tables that are left."""
        return len(self._tables)

    def pop(self) -> Any:
        """A table of the next rows."""
        table = self._tables[0].slice(self._popped, self._chunk)
        self._pass(table.num_rows)
        return table

    def skip_to(self, position: int) -> bool:
        """Drops rows before a position; False if the row there is not among those that are left."""
        while self._tables and self.position < position:
            left = self._tables[0].num_rows - self._popped
            self._pass(min(left, position - self.position))
        return bool(self._tables) and self.position == position

    def _pass(self, rows: int) -> None:
        """Takes some of the first table's rows."""
        self.position += rows
        self._popped += rows
        if self._popped == self._tables[0].num_rows:
            self.size -= self._tables.popleft().nbytes
            self._popped = 0


def _array(arrow: Any, numbers: Int64Array) -> Any:
    """Not pyarrow.array, which imports pandas where it is installed: 40 MB per process."""
    buffer = arrow.py_buffer(np.ascontiguousarray(numbers))
    return arrow.Array.from_buffers(arrow.int64(), len(numbers), [None, buffer])
