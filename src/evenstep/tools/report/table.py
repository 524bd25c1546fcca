"""Tables as plain text, for a terminal, a log file or a Markdown code block."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from evenstep.errors import ConfigurationError

_GAP = "   "


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """A table with columns as wide as needed, the first aligned left and the others right.

    Args:
        header: [columns] names; at least one.
        rows: [rows][columns] cells.
        title: a line above the table.

    Returns:
        Lines without trailing spaces, joined by newlines.

    Raises:
        ConfigurationError: a row has more or fewer cells than the header.
    """
    for number, row in enumerate(rows):
        if len(row) != len(header) or not header:
            raise ConfigurationError(
                f"row {number} has {len(row)} cells under {len(header)} headings; give one for each"
            )
    table = [list(header), *map(list, rows)]
    widths = [max(map(_width, column)) for column in zip(*table)]
    lines = [_line(row, widths) for row in table]
    lines.insert(1, _GAP.join("─" * width for width in widths))
    return "\n".join([title, "", *lines] if title else lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell + space if index == 0 else space + cell
        for index, (cell, width) in enumerate(zip(cells, widths))
        for space in [" " * (width - _width(cell))]
    ]
    return _GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Terminal columns of `text`: a wide character takes two, a combining one none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
