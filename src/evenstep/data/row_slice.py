"""The next rows of a row group, in an order of their own, picked out of it while it is decoded.

A row group is decoded a few rows at a time, and those that come next are kept, as many as there is
room for. So no row group is in memory as a whole unless there is room for all of its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

_CHUNK_ROWS, _CHUNK_BYTES = 64, 1 << 17
"""Rows that become Python objects at once, which are not counted as kept."""
_TABLE_BYTES = 1 << 20
"""Rows that are kept as one allocation and freed together. Of smaller ones the allocator would put
many into pages that it returns to the system only when all of them are free."""


class RowSlice:
    """See the module docstring."""

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
        self.position += table.num_rows
        self._popped += table.num_rows
        if self._popped == self._tables[0].num_rows:
            self.size -= self._tables.popleft().nbytes
            self._popped = 0
        return table


def _array(arrow: Any, numbers: Int64Array) -> Any:
    """Not pyarrow.array, which imports pandas where it is installed: 40 MB per process."""
    buffer = arrow.py_buffer(np.ascontiguousarray(numbers))
    return arrow.Array.from_buffers(arrow.int64(), len(numbers), [None, buffer])
