"""Sources on disk: Python code of this interpreter.

A folder of code is a source, and a block of a file, most often a function or class, a document.

A source is one JSON Lines file. A sample is identified by (source, shard, index), which names a
line here, so the samples that trainers received can be compared with those stored.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.text.corpus import blocks_of

MAX_LENGTH = 4096
"""Bytes of a document; longer ones are cut off."""

_FEWEST, _MOST = 4, 24  # files of a source
_DEPTH = 2  # names of folders in the name of a source
_CACHES = {"__pycache__", "site-packages", "dist-packages"}
_BLOCK = 1024  # lines of a shard


@dataclass(frozen=True, kw_only=True)
class StoredSources:
    """Sources on disk, made by `write_sources`."""

    folder: Path
    samples: Mapping[str, int]
    """Number of samples of each source."""

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


def write_sources(
    folder: Path,
    most: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> StoredSources:
    """Writes a file for each source.

    Args:
        most: sources to write; those of most files are taken.
        seed: decides which files of a large source are read, and their order.
        progress: called with the number of sources read, and of all.

    Raises:
        ConfigurationError: there is no Python code.
    """
    files: dict[str, list[Path]] = {}
    for source, path in _python_files():
        files.setdefault(source, []).append(path)
    ranked = sorted(files.items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    chosen = [(source, paths) for source, paths in ranked if len(paths) >= _FEWEST]

    folder.mkdir(parents=True, exist_ok=True)
    samples: dict[str, int] = {}
    seen: set[str] = set()
    for number, (source, paths) in enumerate(chosen):
        lines = []
        for path in random.Random(f"{seed} {source}").sample(paths, min(len(paths), _MOST)):
            for text in blocks_of(path):
                # Half a character at the end of the cut, and lone surrogates, are left out.
                part = text.encode(errors="ignore")[:MAX_LENGTH].decode(errors="ignore")
                # One token predicts nothing.
                if len(part.strip()) > 1 and part not in seen:
                    seen.add(part)
                    lines.append(json.dumps({"text": part}) + "\n")
        if lines:
            (folder / f"{len(samples):03}.jsonl").write_text("".join(lines), encoding="utf-8")
            samples[source] = len(lines)
        if progress is not None:
            progress(number + 1, len(chosen))
    if not samples:
        raise ConfigurationError(
            f"there is no Python code under {', '.join(map(str, _roots()))} to train on; use an "
            "interpreter whose library is not zipped"
        )
    _lines.cache_clear()
    return StoredSources(folder=folder, samples=samples)


def _roots() -> list[Path]:
    return [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib")]


def _python_files() -> Iterator[tuple[str, Path]]:
    """Files of the standard library and of installed packages, each with its source."""
    for root in _roots():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if not _CACHES & set(parts):
                yield "/".join(parts[:-1][:_DEPTH]) or "modules", path
