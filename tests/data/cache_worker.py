"""Processes that read a file by way of a cache, compare it with the original and write down what
the cache counted. What they do in its folder takes a while, so that many are killed in the middle.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import chaos_storage  # noqa: F401  registers chaos://
from evenstep.data import block_cache, source_files
from evenstep.data.block_cache import BlockCache
from evenstep.data.source import Source
from evenstep.data.source_files import SourceFile, list_files

BLOCK = 1000
FILE = BLOCK + block_cache._CHECKSUM


def small_blocks(patch: Any) -> None:
    patch.setattr(block_cache, "BLOCK", BLOCK)
    patch.setattr(block_cache, "_FILE", FILE)
    patch.setattr(source_files, "_BUFFER", BLOCK // 2)


def cached(path: Path, folder: Path, limit: int, **storage: Any) -> SourceFile:
    cache = BlockCache(folder, limit)
    (file,) = list_files(Source("s", f"chaos://{path}", cache=cache, storage_options=storage))
    return file


def held(folder: Path) -> int:
    """Bytes of a cache's blocks and parts."""
    return sum(each.stat().st_size for each in folder.iterdir() if each.name != "total")


class _Patch:
    setattr = staticmethod(setattr)


@contextmanager
def _slow_file(out: Path, path: Path, folder: Path, seed: int, limit: int) -> Iterator[Any]:
    """Yields random numbers, the file and its bytes; writes down the counts."""
    draw = random.Random(seed)

    def slowly(real: Any, *arguments: Any, **options: Any) -> Any:
        time.sleep(draw.random() * 0.004)
        return real(*arguments, **options)

    for name in ("pwrite", "rename", "unlink", "open"):
        setattr(os, name, partial(slowly, getattr(os, name)))
    small_blocks(_Patch)
    file = cached(path, folder, limit)
    yield draw, file, path.read_bytes()
    assert file.cache is not None
    out.write_text(json.dumps(asdict(file.cache.counts)))


def read_whole(out: Path, path: Path, folder: Path, seed: int, limit: int) -> None:
    with (
        _slow_file(out, path, folder, seed, limit) as (_, file, content),
        file.open() as opened,
    ):
        assert opened.read() == content


def read_parts(out: Path, path: Path, folder: Path, seed: int, limit: int, count: int) -> None:
    with _slow_file(out, path, folder, seed, limit) as (draw, file, content):
        for _ in range(count):
            at, size = draw.randrange(len(content)), draw.randrange(1, 5 * BLOCK)
            with file.open() as opened:
                opened.seek(at)
                assert opened.read(size) == content[at : at + size]


def fetch_forever(out: Path, path: Path, folder: Path, seed: int, limit: int) -> None:
    def never(begin: int, end: int) -> bytes:
        out.touch()
        time.sleep(1000)
        return b""

    small_blocks(_Patch)
    file = cached(path, folder, limit)
    assert file.cache is not None
    file.cache.read(file, 0, 3 * BLOCK, never)
