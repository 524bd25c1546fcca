"""Files that changed since a fingerprint was taken are noticed by their content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from evenstep.data import Source, open_reader
from evenstep.data.source_files import content_digest, list_files
from evenstep.errors import MismatchError


def write(path: Path, table: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        stored = {"compression": "none", "use_dictionary": False, "row_group_size": 100}
        parquet.write_table(arrow.Table.from_pylist(table), path, **stored)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "memory"])
def test_other_data_of_the_same_size_is_refused_and_a_copy_is_not(kind: str, tmp_path: Path):
    table = [{"id": k, "text": f"{k % 7:04}"} for k in range(500)]
    path = tmp_path / f"a.{'parquet' if kind == 'parquet' else 'jsonl'}"
    url = str(path)
    if kind == "memory":  # as an object store is read
        url = f"memory://{tmp_path}/a.jsonl"

    def fingerprint_of(rows: list[dict[str, Any]]) -> tuple[int, Any]:
        write(path, rows)
        if kind == "memory":
            with fsspec.open(url, "wb") as there:
                there.write(path.read_bytes())
        reader = open_reader(Source("web", url))
        return list_files(reader.source)[0].size, reader

    size, before = fingerprint_of(table)
    saved = before.fingerprint
    os.utime(path, (1, 1))
    before.check_fingerprint(saved)
    same_size, changed = fingerprint_of([*table[:250], {**table[250], "id": 251}, *table[251:]])
    assert same_size == size
    with pytest.raises(MismatchError, match="source 'web' has changed: content was"):
        changed.check_fingerprint(saved)


def test_of_large_files_a_bounded_part_is_read(tmp_path: Path):
    for name in "ab":
        with open(tmp_path / f"{name}.jsonl", "wb") as file:
            file.write(b"begin")
            file.truncate(1 << 36)  # 64 GiB of nothing
    source = Source("web", f"{tmp_path}/*.jsonl")
    files = list_files(source)
    found = {content_digest(source, files)}
    for place in (3, (1 << 36) - 60_000):
        with open(files[1].path, "r+b") as file:
            file.seek(place)
            file.write(b"!")
        found.add(content_digest(source, files))
    assert len(found) == 3
