"""Text for the demo: Python code of this interpreter, or Parquet files whose rows name their
sources. Written as sources below ``--out``, once.

A folder of code is a source and a function a document, from its ``def`` line to that of the next.
At most `FILES` files, or `ROWS` rows, of each source are taken. Unusable documents are counted.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep_demos.service.encode import pieces_of
from evenstep_demos.service.folders import group_by_folder
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.stored import StoredSources, stored_or_none, write_sources

Progress = Callable[[int, int], None]

FILES, ROWS = 24, 400
"""Limits of a source."""

_FEWEST = 4  # files of a folder that is a source
_CACHES = {"__pycache__", "site-packages", "dist-packages"}
_HEADS = re.compile(r"^(?=[ \t]*(?:async +def|def|class) )", re.MULTILINE)


def text_sources(options: ServiceDemoOptions, progress: Progress | None = None) -> StoredSources:
    """The sources of the text demo; those of an earlier run if they were made of the same data.

    Args:
        progress: called with the number of sources written, and of all.

    Raises:
        ConfigurationError: there is no text, or the Parquet files lack a column.
        ImportError: pyarrow is not installed.
    """
    made_of = _made_of(options)
    folder = options.out / "sources"
    found = stored_or_none(folder, made_of)
    if found is not None:
        return found
    facts = {"found": 0, "taken": 0, "documents": 0, "unusable": 0, "cut": 0}
    if options.data:
        name = ", ".join(str(path) for path in options.data)
        groups: dict[str, list[Any]] = {}
        for row in parquet_rows(options.data, (options.column,), options.source_column):
            facts["found"] += 1
            groups.setdefault(row["source"], []).append(row[options.column])
        ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        texts = {source: tuple(rows) for source, rows in ranked[: options.sources]}
        read: Callable[[Any], list[str]] = _itself
        most = ROWS
    else:
        name = "Python functions of this interpreter"
        roots = _roots()
        files = sorted((path, root) for root in roots for path in _files(root))
        facts["found"] = len(files)
        chosen = group_by_folder(
            [_folders(path, root) for path, root in files], options.sources, fewest=_FEWEST
        )
        texts = {source: tuple(files[i][0] for i in rows) for source, rows in chosen.items()}
        read, most = _functions_in, FILES
    rows = _rows(texts, read, most, options, facts, progress)
    return write_sources(folder, rows, name=name, made_of=made_of, facts=facts)


def _rows(
    texts: dict[str, tuple[Any, ...]],
    read: Callable[[Any], list[str]],
    most: int,
    options: ServiceDemoOptions,
    facts: dict[str, int],
    progress: Progress | None,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    seen: set[bytes] = set()
    for number, (source, given) in enumerate(texts.items()):
        draw = random.Random(f"{options.seed} {source}")
        chosen = draw.sample(given, min(len(given), most))
        facts["taken"] += len(chosen)
        pieces: list[dict[str, Any]] = []
        for text in (text for each in chosen for text in read(each)):
            facts["documents"] += 1
            digest = hashlib.blake2b(text.encode("utf-8", "replace")).digest()
            if not _usable(text) or digest in seen:
                facts["unusable"] += 1
                continue
            seen.add(digest)
            parts = pieces_of(text, options.length_limit)
            facts["cut"] += len(parts) > 1
            pieces += [{"text": part} for part in parts]
        if progress is not None:
            progress(number + 1, len(texts))
        yield source, pieces


def _usable(text: str) -> bool:
    if len(text.strip()) < 2:  # one token predicts nothing
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _itself(text: str | None) -> list[str]:
    return [text or ""]


def _made_of(options: ServiceDemoOptions) -> str:
    files = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in options.data]
    code = [sys.version, *map(str, _roots())]
    columns = (options.column, options.source_column)
    return repr((files or code, columns, options.sources, options.length_limit, options.seed))


# Python files


def _roots() -> list[Path]:
    """The standard library, and where packages are installed."""
    paths = sysconfig.get_paths()
    return [Path(paths[name]) for name in ("stdlib", "purelib") if Path(paths[name]).is_dir()]


def _files(root: Path) -> Iterable[Path]:
    return (p for p in root.rglob("*.py") if not _CACHES & set(p.relative_to(root).parts))


def _folders(path: Path, root: Path) -> tuple[str, ...]:
    inside = path.relative_to(root).parts[:-1]
    return inside if root.name in _CACHES else ("python", *inside)


def _functions_in(path: Path) -> list[str]:
    try:
        with tokenize.open(path) as file:  # honours the file's own encoding declaration
            return functions_of(file.read())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return [""]


def functions_of(code: str) -> list[str]:
    """Splits `code` before each ``def`` or ``class`` line. The part before the first is left out,
    unless there is no other."""
    before, *functions = _HEADS.split(code)
    return functions or [before]


# Parquet


def parquet_rows(
    paths: Sequence[Path], columns: Sequence[str], source_column: str
) -> Iterator[dict[str, Any]]:
    """Yields rows of the columns, with the source of each as ``source``.

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
        for column in (*columns, source_column):
            if column not in names:
                raise ConfigurationError(
                    f"{path} has no column {column!r}; it has {', '.join(names)}: choose with "
                    "--column and --source-column"
                )
        for batch in file.iter_batches(columns=[*columns, source_column]):
            for row in batch.to_pylist():
                yield {**row, "source": str(row[source_column])}
