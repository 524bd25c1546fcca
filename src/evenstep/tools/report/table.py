"""Tables as plain text, for a terminal, a log file or a Markdown code block."""

from __future__ import annotations

from collections.abc import Sequence

_GAP = "   "


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """A table with columns as wide as needed, the first aligned left and the others right.

    Args:
        header: [columns] names; at least one.
        rows: [rows][columns] cells.
        title: a line above the table.

    Returns:
        Lines without trailing spaces, joined by newlines.
    """
    table = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [
        _GAP.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]
    lines.insert(1, _GAP.join("─" * width for width in widths))
    return "\n".join([title, "", *lines] if title else lines)
