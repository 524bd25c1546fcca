"""A digest of the content of a source's files that is cheap: of the same few blocks of each file.

Two corpora of other content almost always differ in some of them: text that was tokenized, shuffled
or written again differs throughout. A change of a few bytes within a large file may go unnoticed.
Times and paths do not count, so a corpus may be copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from evenstep.data.source import Source
from evenstep.data.source_files import SourceFile, not_opened
from evenstep.data.storage_retry import retried

_BLOCK = 4096
"""Bytes."""
_BLOCKS = 1024
"""Blocks of all files of a source, shared among them; 1 to 16 of each."""
_ENDS = 1 << 24
"""Bytes at the ends of all files, where Parquet has the sizes and statistics of all columns, shared
among them; 4 to 64 KiB of each."""
_AT_ONCE = 256
"""Files whose blocks are requested together from an object store."""

_Range = tuple[int, int]
"""First byte and end."""


def content_digest(source: Source, files: Sequence[SourceFile]) -> str:
    """16 hexadecimal digits.

    Raises:
        ConfigurationError, StorageError: a file cannot be read.
    """
    found = hashlib.sha256()
    count = int(np.clip(_BLOCKS // len(files), 1, 16))
    end = int(np.clip(_ENDS // len(files), _BLOCK, 1 << 16))
    for _, together in groupby(enumerate(files), lambda each: (each[0] // _AT_ONCE, each[1].local)):
        batch = [file for _, file in together]
        try:
            for content in _read(batch, [_ranges(file.size, count, end) for file in batch]):
                found.update(content)
        except Exception as error:  # file systems raise their own types
            what = f"{batch[0].path} or a file after it cannot be read"
            raise not_opened(source, what, error) from error
    return found.hexdigest()[:16]


def _ranges(size: int, count: int, end: int) -> list[_Range]:
    """What is read of a file: evenly spaced blocks and its end; all of a small file."""
    last = max(size - end, 0)
    if last <= count * _BLOCK:
        return [(0, size)]
    begins = np.linspace(0, last - _BLOCK, count).astype(int).tolist()
    return [*((begin, begin + _BLOCK) for begin in begins), (last, size)]


def _read(files: Sequence[SourceFile], ranges: Sequence[Sequence[_Range]]) -> Iterator[bytes]:
    """The ranges of each file, one after the other. Files are all local, or all not."""
    if files[0].local:
        for file, wanted in zip(files, ranges):
            with file.open() as opened:
                for begin, end in wanted:
                    opened.seek(begin)
                    yield opened.read(end - begin)
        return
    pairs = [(file, *each) for file, wanted in zip(files, ranges) for each in wanted]
    for system, of_system in groupby(pairs, lambda pair: pair[0].system):
        listed, begins, ends = zip(*of_system)
        paths = [file.path for file in listed]
        attempt = partial(_ranges_of, system, paths, list(begins), list(ends))
        yield from retried(paths[0], attempt, patience=listed[0].patience)


def _ranges_of(
    system: Any, paths: list[str], begins: list[int], ends: list[int]
) -> Sequence[bytes]:
    found: list[bytes] = system.cat_ranges(paths, begins, ends, on_error="raise")
    for path, content, begin, end in zip(paths, found, begins, ends):
        if len(content) < end - begin:
            raise ConnectionError(f"{path} ended at byte {begin + len(content):,} before {end:,}")
    return found
