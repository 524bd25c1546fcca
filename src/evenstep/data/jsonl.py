"""JSON Lines: a shard is a block of lines. Blank lines do not count.

Each file is read once when the source is first opened, to find where blocks begin; then a block is
one seek away, and lines are parsed as they are yielded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.data.file_index import kept_indices
from evenstep.data.reader import FileReader, fields_of
from evenstep.data.shard_order import ShardPart
from evenstep.data.source import PACKED, Source
from evenstep.data.source_files import SourceFile, list_files, not_opened
from evenstep.errors import ConfigurationError

_BLOCK = np.dtype([("begin", np.int64), ("end", np.int64), ("lines", np.int64)])


class JsonLinesReader(FileReader):
    """See the module docstring."""

    random_access = True

    def __init__(self, source: Source, seed: int) -> None:
        super().__init__(source, seed)
        self._files = list_files(source)
        layout = f"blocks of {source.block} lines"
        entries = kept_indices(self._files, layout, self._indexed)
        blocks = [np.frombuffer(entry, _BLOCK) for entry in entries]
        self._blocks = np.concatenate(blocks)
        self._file_of = np.repeat(np.arange(len(blocks)), list(map(len, blocks)))
        self._held: tuple[int, list[bytes]] = -1, []
        """The block that was read last, and its lines."""
        self._set_order(self._blocks["lines"].astype(np.int64))

    def _indexed(self, file: SourceFile) -> bytes:
        if file.path.endswith(PACKED):
            raise ConfigurationError(
                f"source {self.source.name!r}: {file.path} is compressed, so its lines cannot be "
                "sought; decompress it, or convert it to Parquet"
            )
        try:
            return _blocks(file, self.source.block).tobytes()
        except Exception as error:  # file systems raise their own types
            raise not_opened(self.source, f"{file.path} cannot be read", error) from error

    def _shard(self, part: ShardPart) -> Iterator[Any]:
        lines = self._lines(part.shard)
        for index in part.indices.tolist():
            try:
                yield self._record(lines[index])
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise self._failed(error, part.shard, index) from error

    def _lines(self, shard: int) -> list[bytes]:
        held, lines = self._held
        if held != shard:
            block = self._blocks[shard]
            try:
                with self._file(shard).open() as file:
                    file.seek(int(block["begin"]))
                    content = file.read(int(block["end"] - block["begin"]))
            except Exception as error:  # file systems raise their own types
                raise self._failed(error, shard) from error
            lines = [line for line in content.split(b"\n") if line.strip()]
            self._held = shard, lines
        return lines

    def _record(self, line: bytes) -> Any:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise TypeError("the line is not an object with named fields")
        return fields_of(record, self.source)

    def _layout(self) -> Sequence[object]:
        return (self.source.block,)

    def _shard_name(self, shard: int) -> str:
        block = self._blocks[shard]
        return f"lines from byte {block['begin']:,} of {self._file(shard).path}"


def _blocks(file: SourceFile, size: int) -> npt.NDArray[Any]:
    """[blocks] first byte, end and number of lines of each block of a file."""
    found: list[tuple[int, int, int]] = []
    begin = at = lines = 0
    with file.open() as opened:
        for line in opened:
            at += len(line)
            lines += bool(line.strip())
            if lines == size:
                found.append((begin, at, lines))
                begin, lines = at, 0
    if lines:
        found.append((begin, at, lines))
    return np.array(found, _BLOCK)
