"""Readers that share a source in stripes, as several loaders do, read each shard once each."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from evenstep.data import Source, open_reader
from evenstep.service.source_loader.source_stream import SourceStream, Stretch
from evenstep.strategy.loaders import SourceStripe

ROWS, PARTS, STRIPE = 2400, 8, 16


def bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_reader_that_comes_back_to_a_shard_does_not_read_it_again(tmp_path: Path, kind: str):
    draw = random.Random(0)
    rows = [{"n": n, "text": draw.randbytes(500).hex()} for n in range(ROWS)]
    path = tmp_path / f"0.{kind}"
    if kind == "parquet":
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, path, row_group_size=ROWS // 2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found: list[Any] = []
    for part in range(PARTS):
        with open_reader(Source("s", str(path), block=ROWS // 2)) as reader:
            share = SourceStripe(source="s", part=part, parts=PARTS, stripe=STRIPE)
            stream = SourceStream(reader, share, 1)
            before = bytes_read()
            for begin in range(0, ROWS, 300):
                found += [item.sample for item in Stretch(stream, begin, 300)]
            assert bytes_read() - before < 1.3 * path.stat().st_size
    assert sorted(row["n"] for row in found) == [*range(ROWS)]


class Buffered(AbstractFileSystem):
    """Local files, read ahead as those of object stores are."""

    protocol = "buffered"
    fetched: ClassVar[list[int]] = []
    """Bytes of each request."""

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        found = LocalFileSystem().info(self._strip_protocol(path))
        return {**found, "ETag": str(found["mtime"])}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return BufferedFile(self, path, mode, block_size=50 << 20, cache_type="readahead")


class BufferedFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        Buffered.fetched.append(end - start)
        with open(self.path, "rb") as file:
            file.seek(start)
            return file.read(end - start)


fsspec.register_implementation("buffered", Buffered, clobber=True)
