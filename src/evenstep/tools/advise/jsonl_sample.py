"""Lines of a JSON Lines file, drawn at random in one pass; only those drawn are parsed."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import ConfigurationError
from evenstep.tools.advise.token_counter import choose_column


@dataclass(frozen=True)
class Line:
    """One line, with its number from 1."""

    number: int
    content: bytes

    def record(self, path: Path) -> dict[str, Any]:
        try:
            record = json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"line {self.number} of {path} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise ConfigurationError(
                f"line {self.number} of {path} is not an object with named fields"
            )
        return record

    def get(self, field: str, path: Path) -> Any:
        """The field's value; None if the line does not have it."""
        return self.record(path).get(field)


def field_of(line: Line, column: str | None, *, text: bool, path: Path) -> str:
    """The field to read: `column`, or the default of `choose_column`."""
    names = list(line.record(path))
    if column is not None and column not in names:
        # An optional field may be missing from this line only.
        raise ConfigurationError(
            f"line {line.number} of {path} has no field {column!r}; it has {', '.join(names)}"
        )
    return choose_column(column, names, path, text=text)


def draw_lines(path: Path, size: int | None, random: np.random.Generator) -> tuple[list[Line], int]:
    """Draws lines without replacement, each equally likely. Blank lines are skipped.

    The file is read once, with `size` lines in memory.

    Returns:
        The lines drawn, in the file's order, and the number of all lines.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    kept: list[Line] = []
    count = 0
    # Reservoir sampling that skips (Li, 1994, algorithm L): it draws random numbers only for lines
    # that enter the reservoir. `bound` is W in the paper, `due` the next line to enter.
    bound, due = 1.0, -1
    try:
        for number, content in _lines(path):
            if size is None or len(kept) < size:
                kept.append(Line(number, content))
            elif count == due:
                kept[int(random.integers(size))] = Line(number, content)
            if size is not None and len(kept) == size and count >= due:
                bound *= _uniform(random) ** (1 / size)
                skip = math.log(_uniform(random)) / math.log1p(-bound) if bound < 1 else 0.0
                due = count + 1 + int(skip)
            count += 1
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return sorted(kept, key=lambda line: line.number), count


def _uniform(random: np.random.Generator) -> float:
    """A random number in (0, 1], which has a logarithm."""
    return 1.0 - float(random.random())


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        for number, content in enumerate(file, 1):
            if not content.isspace():
                yield number, content
