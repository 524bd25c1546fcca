"""The text: source code of the standard library, or a user's Parquet file.

A corpus is read in random order and only up to `CHARACTERS`, so that a big file costs no more than
a small one.
"""

from __future__ import annotations

import random
import re
import sysconfig
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.tools.simulate.lengths import open_parquet

CHARACTERS = 12_000_000
"""Limit of the text read: several times what the ranks can train on in their time."""

_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}
_BETWEEN_BLOCKS = re.compile(r"\n{3,}(?=\S)")  # two blank lines or more, then a line not indented


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Different, non-empty documents in random order."""

    name: str
    documents: list[str]
    found: int
    """Documents that the source holds, with those that are empty, unreadable, equal to another, or
    not read as there are enough."""


def read_standard_library(seed: int, root: Path | None = None) -> Corpus:
    """The running interpreter's standard library: the blocks of its source files that two blank
    lines divide, most of them one function or class. Their lengths vary as much as those of chats.

    Args:
        seed: decides the order in which blocks are read.
        root: another folder of Python files.

    Raises:
        ConfigurationError: there is no source file, as in an interpreter whose library is zipped.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(
        path for path in root.rglob("*.py") if not _INSTALLED & set(path.relative_to(root).parts)
    )
    if not paths:
        raise ConfigurationError(
            f"no Python source files under {root}; pass --data FILE.parquet to use your own text"
        )
    blocks = [block for path in paths for block in blocks_of(path)]
    random.Random(seed).shuffle(blocks)
    return _gather(f"functions and classes of {root}", blocks, len(blocks))


def blocks_of(path: Path) -> list[str]:
    """The blocks of a source file; one empty text if it cannot be read."""
    try:
        with tokenize.open(path) as file:  # honours the file's own encoding declaration
            return _BETWEEN_BLOCKS.split(file.read())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return [""]


def read_parquet(path: Path, column: str, seed: int) -> Corpus:
    """A text column of a Parquet file, one document per row. Row groups are read in random order.

    Raises:
        ConfigurationError: no such file or column, or the column holds no text.
        ImportError: pyarrow is not installed.
    """
    with open_parquet(path) as file:
        import pyarrow

        schema = file.schema_arrow
        if column not in schema.names:
            raise ConfigurationError(
                f"{path} has no column {column!r}; it has {', '.join(schema.names)}: choose with "
                "--column"
            )
        kind = schema.field(column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise ConfigurationError(f"column {column!r} of {path} holds {kind}, not text")
        return _gather(str(path), _rows(file, column, seed), file.metadata.num_rows)


def _rows(file: Any, column: str, seed: int) -> Iterable[str | None]:
    shuffler = random.Random(seed)
    groups = list(range(file.metadata.num_row_groups))
    shuffler.shuffle(groups)
    for group in groups:
        rows = file.read_row_group(group, columns=[column]).column(0).to_pylist()
        shuffler.shuffle(rows)
        yield from rows


def _gather(name: str, texts: Iterable[str | None], found: int) -> Corpus:
    documents: dict[str, None] = {}  # a dict keeps the order and drops copies
    characters = 0
    for text in texts:
        if text and not text.isspace() and text not in documents:
            documents[text] = None
            characters += len(text)
            if characters >= CHARACTERS:
                break
    return Corpus(name=name, documents=list(documents), found=found)
