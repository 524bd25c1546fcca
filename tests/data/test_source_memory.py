"""What open Parquet sources cost: next to nothing until they are read, then a row group each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("psutil")

SOURCES, GROUPS, ROWS, ROW_BYTES = 60, 4, 500, 4000
GROUP = ROWS * ROW_BYTES / 2**20
"""MiB of a decoded row group."""

SCRIPT = """
import json, sys
import psutil
from evenstep.data import Source, open_reader

path, sources, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
process = psutil.Process()
memory = lambda: process.memory_info().rss / 2**20
with open_reader(Source("first", path)) as reader:  # loads what everything needs
    next(reader.read())
before = memory()
readers = [open_reader(Source(f"s{k}", path)) for k in range(sources)]
opened = memory() - before
items = [reader.read() for reader in readers]
for item in items:
    next(item)
reading = memory() - before
for item in items:
    for _ in range(3 * rows):  # three row groups further
        next(item)
further = memory() - before
print(json.dumps([opened, reading, further]))
"""


def test_memory_by_real_resident_size(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = arrow.table(
        {
            "payload": [random.bytes(ROW_BYTES) for _ in range(GROUPS * ROWS)],
            "id": list(range(GROUPS * ROWS)),
        }
    )
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, row_group_size=ROWS, compression="zstd")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(SOURCES), str(ROWS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    opened, reading, further = json.loads(ran.stdout)
    assert opened < 0.1 * SOURCES
    # More than one row group would be about twice as much; less than one is not possible.
    assert 0.9 * GROUP * SOURCES < reading < 1.7 * GROUP * SOURCES
    assert further < 1.7 * GROUP * SOURCES


ONE = """
import sys
import psutil
from evenstep.data import Source, open_reader

process = psutil.Process()
memory = lambda: process.memory_info().rss / 2**20
reader = open_reader(Source("one", sys.argv[1]))
before = memory()
items = reader.read()
next(items)
print(memory() - before)
"""


def test_what_a_row_group_needed_to_be_decoded_is_given_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = arrow.table({"payload": [random.bytes(ROW_BYTES) for _ in range(4 * ROWS)]})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    ran = subprocess.run(
        [sys.executable, "-c", ONE, str(path)], capture_output=True, text=True, check=True
    )
    # About 6 times as much while it is decoded; some is code of the library.
    assert 0.9 * 4 * GROUP < float(ran.stdout) < 4 * 4 * GROUP


def test_reading_files_loads_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"input_ids": [[1], [2]]}), path)
    script = """
import pickle, sys
from evenstep.data import Source, open_reader
source = pickle.loads(pickle.dumps(Source("a", sys.argv[1])))
with open_reader(source) as reader:
    item = next(reader.read())
    source.measure(source.prepare(item.sample, item.shard, item.index), item.shard, item.index)
print(*[name for name in ("torch", "ray", "pandas", "datasets") if name in sys.modules])
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
