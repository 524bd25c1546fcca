"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives another path in the same folder to write to. What is written there takes the place of
    `path` at the end; after an exception `path` is as it was, and the other file is gone."""
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
