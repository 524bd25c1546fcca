"""Lengths of real documents, in real tokens.

Every file of a source tree is a document; files that cannot be one are counted. Text is not kept: a
tree may be larger than memory.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.rng import RandomStream, generator
from evenstep.tools.advise.parquet_sample import draw_from_parquet
from evenstep.tools.advise.tokenizer import CountTokens, load_tokenizer
from evenstep.tools.simulate.lengths import existing_file

Progress = Callable[[int, int], None]

_NOT_OURS = {"site-packages", "dist-packages", "node_modules", "__pycache__"}
_FILES = 64  # tokenized at a time


@dataclass(frozen=True, kw_only=True)
class DocumentLengths:
    """Lengths of documents, in random order."""

    name: str
    """Name of the source."""
    tokens: str
    """The unit: which tokens."""
    lengths: Int64Array
    """[documents] int64, all positive."""
    found: int
    """Documents that the source holds, with those that are blank, not UTF-8, unreadable or copies
    of another, which have no length here."""

    def __str__(self) -> str:
        lengths = self.lengths
        return (
            f"{self.name}: {self.found:,} documents, {self.found - len(lengths):,} left out as "
            f"blank, unreadable or copies of others; {len(lengths):,} of {int(lengths.sum()):,} "
            f"tokens ({self.tokens}): median {np.median(lengths):,.0f}, mean "
            f"{lengths.mean():,.0f}, longest {int(lengths.max()):,}"
        )


def _count_bytes(texts: Sequence[str]) -> list[int]:
    """Tokens of a byte-level model: bytes of UTF-8."""
    return [len(text.encode()) for text in texts]


def read_documents(
    data: Path | None,
    *,
    glob: str = "*.py",
    column: str | None = None,
    tokenizer: str | None = None,
    progress: Progress | None = None,
) -> DocumentLengths:
    """Reads the lengths of documents, in random order.

    Args:
        data: a folder, or a Parquet file with one document a row; None takes the standard library.
        glob: names of the files of a folder to read, in all folders below it.
        column: of a Parquet file; None takes `text`, `input_ids` or the only one.
        tokenizer: a ``tokenizer.json``, a folder that has one, or a name on the Hugging Face hub;
            None counts each byte of UTF-8 as a token, as byte-level models do.

    Raises:
        ConfigurationError: there is no such file, folder or column, or nothing usable in it.
        ImportError: a package needed to read it is not installed.
    """
    count = _count_bytes if tokenizer is None else load_tokenizer(tokenizer)
    tokens = "bytes" if tokenizer is None else f"of {tokenizer}"
    random = generator(0, RandomStream.DEMO_DOCUMENTS)
    if data is None or data.is_dir():
        root = data or Path(sysconfig.get_paths()["stdlib"])
        lengths, found = _read_folder(root, glob, count, progress)
        name = f"{glob} under {root}"
    elif data.suffix == ".parquet":
        drawn = draw_from_parquet(existing_file(str(data)), column, count, None, random, progress)
        lengths, name, found = drawn.lengths, drawn.name, len(drawn.lengths)
    else:
        wrong = "is neither a folder nor" if data.exists() else "does not exist; give a folder or"
        raise ConfigurationError(f"data={data} {wrong} a .parquet file")
    return DocumentLengths(
        name=name, tokens=tokens, lengths=random.permutation(lengths), found=found
    )


def _read_folder(
    root: Path, glob: str, count: CountTokens, progress: Progress | None = None
) -> tuple[Int64Array, int]:
    """Reads the files of a source tree, except hidden files and folders, installed packages and
    caches.

    Args:
        glob: pattern of file names, in all folders.
        progress: called with files read so far and in all.

    Returns:
        [documents] int64 tokens of each different text that is not blank, in order of path; and the
        number of files that were looked at.

    Raises:
        ConfigurationError: no file matches, or none has usable text.
    """
    paths = sorted(path for path in root.rglob(glob) if _is_source(path, root))
    if not paths:
        raise ConfigurationError(f"no file under {root} matches glob={glob!r}")
    seen: set[bytes] = set()
    lengths: list[int] = []
    for begin in range(0, len(paths), _FILES):
        texts = []
        for path in paths[begin : begin + _FILES]:
            text = _text(path)
            digest = blake2b(text.encode()).digest()
            if not text.isspace() and text and digest not in seen:
                seen.add(digest)
                texts.append(text)
        lengths += count(texts)
        if progress is not None:
            progress(min(begin + _FILES, len(paths)), len(paths))
    # A tokenizer may make nothing of a text.
    found = np.array([length for length in lengths if length], np.int64)
    if not len(found):
        raise ConfigurationError(f"none of {len(paths):,} files {glob} under {root} has any text")
    return found, len(paths)


def _is_source(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    hidden = any(part.startswith(".") for part in parts)
    return not hidden and not _NOT_OURS & set(parts) and path.is_file()


def _text(path: Path) -> str:
    """The text of a file; empty if it is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
