"""What open Parquet sources cost: next to nothing until they are read, then what has room."""

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

SOURCES, GROUPS, ROWS, ROW_BYTES = 30, 4, 500, 4000
GROUP = ROWS * ROW_BYTES / 2**20
"""MiB of a decoded row group."""

SCRIPT = """
import json, pickle, sys
import psutil
from evenstep.data import Source, open_reader
from evenstep.data.parquet import DECODED

path, sources, room, on, alone = sys.argv[1], *map(int, sys.argv[2:])
DECODED.limit = room << 20
process = psutil.Process()
memory = lambda: process.memory_info().rss / 2**20
source = pickle.loads(pickle.dumps(Source("first", path)))
with open_reader(source) as reader:  # loads what everything needs
    item = next(reader.read())
    row = source.prepare(item.sample, item.shard, item.index)
    source.measure({"input_ids": [row["id"]]}, item.shard, item.index)
before = memory()
readers = [open_reader(Source(f"s{k}", path)) for k in range(sources)]
opened = memory() - before
items = [reader.read() for reader in readers]
for item in items:
    next(item)
reading = memory() - before
for item in items:
    for _ in range(on):
        next(item)
further = memory() - before
for _ in range(alone):
    next(items[0])
last = memory() - before
heavy = [name for name in ("torch", "ray", "pandas", "datasets") if name in sys.modules]
print(json.dumps([opened, reading, further, last, heavy]))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    table = arrow.table(
        {
            "payload": [random.bytes(ROW_BYTES) for _ in range(GROUPS * ROWS)],
            "id": list(range(GROUPS * ROWS)),
        }
    )
    path = tmp_path_factory.mktemp("corpus") / "a.parquet"
    parquet.write_table(table, path, row_group_size=ROWS, compression="none")
    return path


def resident(path: Path, *, room: int, on: int, alone: int = 0) -> list[float]:
    """MiB once all sources are open, are read from, are `on` samples further, and when one of them
    has been read for `alone` samples more."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (path, SOURCES, room, on, alone))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    *found, heavy = json.loads(ran.stdout)
    assert heavy == [], "reading files needs no torch"
    return found


def test_sources_together_hold_no_more_than_there_is_room_for(path: Path) -> None:
    room = 12
    opened, reading, further, _ = resident(path, room=room, on=ROWS // 2)
    assert opened < 0.1 * SOURCES + 2
    most = 1.2 * room + 0.4 * SOURCES
    assert most < 0.5 * GROUP * SOURCES
    assert max(reading, further) < most
