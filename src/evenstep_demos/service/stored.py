"""The sources of a demo on disk: one JSON Lines file each, written once.

A sample is identified by (source, shard, index), which names a line here, so the samples that
trainers received can be compared with those stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId

_BLOCK = 1024  # lines of a shard
_INDEX = "sources.json"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoredSources:
    """Sources on disk, made by `write_sources` or found by `stored_or_none`."""

    folder: Path
    name: str
    """Name of the data that they were made of."""
    samples: Mapping[str, int]
    """Number of samples of each source."""
    facts: Mapping[str, int]
    """Counts of the data read, used and left out."""

    def path(self, source: str) -> Path:
        return self.folder / f"{list(self.samples).index(source):03}.jsonl"

    def sources(self, transform: Any) -> list[es.Source]:
        """Descriptions for a job."""
        return [
            es.Source(name, str(self.path(name)), transform=transform, block=_BLOCK)
            for name in self.samples
        ]

    def row(self, sample: SampleId) -> dict[str, Any]:
        """The row of a sample, as stored."""
        line = _lines(self.path(sample.source))[sample.shard * _BLOCK + sample.index]
        row: dict[str, Any] = json.loads(line)
        return row


@lru_cache(maxsize=8)
def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def stored_or_none(folder: Path, made_of: str) -> StoredSources | None:
    """The sources of an earlier run, if they were made of the same data."""
    try:
        index = json.loads((folder / _INDEX).read_text())
    except (OSError, ValueError):
        return None
    if index.get("version") != _VERSION or index.get("made_of") != made_of:
        return None
    return StoredSources(
        folder=folder, name=index["name"], samples=index["samples"], facts=index["facts"]
    )


def write_sources(
    folder: Path,
    rows: Iterator[tuple[str, list[dict[str, Any]]]],
    *,
    name: str,
    made_of: str,
    facts: dict[str, int],
) -> StoredSources:
    """Writes sources and their index.

    Args:
        rows: sources and the rows of each; those without rows are left out.
        made_of: identifies the data and the options that decide the rows.
        facts: read when all rows are written.

    Raises:
        ConfigurationError: no source has any rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _INDEX).unlink(missing_ok=True)
    _lines.cache_clear()
    samples: dict[str, int] = {}
    for source, found in rows:
        if found:
            lines = "".join(json.dumps(row) + "\n" for row in found)
            (folder / f"{len(samples):03}.jsonl").write_text(lines, encoding="utf-8")
            samples[source] = len(found)
    if not samples:
        raise ConfigurationError(f"{name}: there is no text to train on; give other data")
    index = {
        "version": _VERSION,
        "made_of": made_of,
        "name": name,
        "samples": samples,
        "facts": facts,
    }
    (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n")
    return StoredSources(folder=folder, name=name, samples=samples, facts=facts)
