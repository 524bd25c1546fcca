"""The output of commands.

One JSON object or a table goes to standard output, notes and progress to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one object on one line. Refuses NaN and infinity, which are not JSON."""
    print(json.dumps(values, allow_nan=False))


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Prints a table of two columns."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    Console(markup=False, emoji=False).print(table)  # names may hold brackets


def print_figures(
    title: str, figures: Mapping[str, Any], rows: Mapping[str, tuple[str, str]]
) -> None:
    """Prints a table of figures.

    Args:
        rows: by name, the key of a figure and its format. Rows without their figure are left out.
    """
    found = {name: f"{figures[key]:{form}}" for name, (key, form) in rows.items() if key in figures}
    print_table(title, found)


def note(text: str) -> None:
    """Prints a line for the reader, to standard error."""
    print(text, file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a function of (done, total), or None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
