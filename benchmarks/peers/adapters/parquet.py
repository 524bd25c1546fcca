"""The raw data as Parquet files, for the adapters that read these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from benchmarks.peers.work import SOURCES, jpegs, texts

FILES, FILES_OF_SOURCE = 8, 2
"""A source has as many files as there are reading processes, where a process reads whole files."""
GROUP = 100
"""Rows of a row group."""


def write(workload: str, raw: Path, to: Path) -> None:
    """``NAME-*.parquet`` with the columns id and text or jpeg; of a mixture NAME is the source."""
    if workload == "images":
        rows = [{"id": int(path.stem), "jpeg": path.read_bytes()} for path in jpegs(raw)]
        _write(rows, to, "images", FILES)
    elif workload == "mixture":
        for source in range(SOURCES):
            _write(_texts(raw, source), to, f"{source:02}", FILES_OF_SOURCE)
    else:
        _write(_texts(raw), to, "text", FILES)


def _texts(raw: Path, source: int | None = None) -> list[dict[str, Any]]:
    return [{"id": number, "text": text} for number, text in texts(raw, source)]


def _write(rows: list[dict[str, Any]], to: Path, name: str, files: int) -> None:
    for file in range(files):
        table = pyarrow.Table.from_pylist(rows[file::files])
        pyarrow.parquet.write_table(table, to / f"{name}-{file}.parquet", row_group_size=GROUP)
