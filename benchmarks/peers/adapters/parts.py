"""The raw data as named parts of bytes, for an adapter that converts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.work import SOURCES, jpegs, texts

Part = Iterator[tuple[int, bytes]]
"""Id, and UTF-8 text or JPEG, of every sample."""


def names(workload: str) -> list[str]:
    """One part, or one for each source of a mixture."""
    return [f"{source:02}" for source in range(SOURCES)] if workload == "mixture" else ["all"]


def parts(workload: str, raw: Path) -> Iterator[tuple[str, Part]]:
    for name in names(workload):
        if workload == "images":
            yield name, ((int(path.stem), path.read_bytes()) for path in jpegs(raw))
        else:
            rows = texts(raw, int(name) if workload == "mixture" else None)
            yield name, ((number, text.encode()) for number, text in rows)
