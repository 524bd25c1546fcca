"""Sources on disk: Python code of this interpreter, or Parquet files whose rows name their sources.

A folder of code is a source, and a function a document: from its ``def`` line to that of the next.
At most `FILES` files, or `ROWS` rows, of each source are taken. Unusable documents are counted.

A source is one JSON Lines file. A sample is identified by (source, shard, index), which names a
line here, so the samples that trainers received can be compared with those stored.
"""

from __future__ import annotations

import json
import random
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.service.options import ServiceDemoOptions

Rows = list[dict[str, Any]]

FILES, ROWS = 24, 400
"""Limits of a source."""

_FEWEST = 4  # files of a folder that is a source
_DEPTH = 2  # names of folders in the name of a source
_CACHES = {"__pycache__", "site-packages", "dist-packages"}
_HEADS = re.compile(r"^(?=[ \t]*(?:async +def|def|class) )", re.MULTILINE)
_BLOCK = 1024  # lines of a shard


@dataclass(frozen=True, kw_only=True)
class StoredSources:
    """Sources on disk, made by `write_sources`."""

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


def write_sources(
    folder: Path, sources: Iterable[tuple[str, Rows]], name: str, facts: Mapping[str, int]
) -> StoredSources:
    """Writes a file for each source.

    Args:
        sources: names and rows; sources without rows are left out.
        name: name of the data.
        facts: counts, which may grow while `sources` is iterated.

    Raises:
        ConfigurationError: no source has any rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples: dict[str, int] = {}
    for source, rows in sources:
        if rows:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{len(samples):03}.jsonl").write_text(lines, encoding="utf-8")
            samples[source] = len(rows)
    if not samples:
        raise ConfigurationError(f"{name}: there is no text to train on; give other data")
    _lines.cache_clear()
    return StoredSources(folder=folder, name=name, samples=samples, facts=dict(facts))


def text_sources(
    options: ServiceDemoOptions, progress: Callable[[int, int], None] | None = None
) -> StoredSources:
    """Writes the sources of the text demo.

    Args:
        progress: called with the number of sources read, and of all.

    Raises:
        ConfigurationError: there is no text, or the Parquet files lack a column.
        ImportError: pyarrow is not installed.
    """
    groups: dict[str, list[Any]] = {}
    if options.data:
        name = ", ".join(str(path) for path in options.data)
        for source, text in parquet_rows(options.data, options.column, options.source_column):
            groups.setdefault(source, []).append(text)
        fewest, most = 1, ROWS
    else:
        name = "Python functions of this interpreter"
        for source, path in _python_files():
            groups.setdefault(source, []).append(path)
        fewest, most = _FEWEST, FILES
    facts = {"found": sum(map(len, groups.values())), "documents": 0, "unusable": 0, "cut": 0}
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[: options.sources]
    chosen = [(source, items) for source, items in ranked if len(items) >= fewest]

    def sources() -> Iterator[tuple[str, Rows]]:
        seen: set[str] = set()
        for number, (source, items) in enumerate(chosen):
            draw = random.Random(f"{options.seed} {source}")
            rows: Rows = []
            for item in draw.sample(items, min(len(items), most)):
                for text in functions_of(item) if isinstance(item, Path) else [item]:
                    facts["documents"] += 1
                    # Half a character at the end of the cut, and lone surrogates, are left out.
                    encoded = (text or "").encode(errors="ignore")
                    part = encoded[: options.max_length].decode(errors="ignore")
                    if len(part.strip()) < 2 or part in seen:  # one token predicts nothing
                        facts["unusable"] += 1
                        continue
                    seen.add(part)
                    facts["cut"] += len(encoded) > options.max_length
                    rows.append({"text": part})
            if progress is not None:
                progress(number + 1, len(chosen))
            yield source, rows

    return write_sources(options.out / "sources", sources(), name, facts)


def _python_files() -> Iterator[tuple[str, Path]]:
    """Files of the standard library and of installed packages, each with its source."""
    for key in ("stdlib", "purelib"):
        root = Path(sysconfig.get_paths()[key])
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if not _CACHES & set(parts):
                yield "/".join(parts[:-1][:_DEPTH]) or "modules", path


def functions_of(path: Path) -> list[str]:
    """Splits a file before each ``def`` or ``class`` line. The part before the first is left out,
    unless there is no other. A file that cannot be read is one empty text."""
    try:
        with tokenize.open(path) as file:  # honours the file's own encoding declaration
            before, *functions = _HEADS.split(file.read())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return [""]
    return functions or [before]


def parquet_rows(
    paths: Sequence[Path], column: str, source_column: str
) -> Iterator[tuple[str, str | None]]:
    """Yields the source and the text of each row.

    Raises:
        ConfigurationError: a file is not Parquet, or lacks a column.
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("--data needs pyarrow: pip install 'evenstep[service]'") from error
    for path in paths:
        try:
            file = pyarrow.parquet.ParquetFile(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigurationError(f"cannot read {path} as Parquet: {error}") from error
        names = file.schema_arrow.names
        for wanted in (column, source_column):
            if wanted not in names:
                raise ConfigurationError(
                    f"{path} has no column {wanted!r}; it has {', '.join(names)}: choose with "
                    "--column and --source-column"
                )
        for batch in file.iter_batches(columns=[column, source_column]):
            for row in batch.to_pylist():
                yield str(row[source_column]), row[column]
