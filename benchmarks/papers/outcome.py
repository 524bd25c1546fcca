"""What a run of the book found: tables, and the one figure that the summary shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lib.report import markdown


@dataclass(frozen=True)
class Table:
    """Cells as they are printed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Outcome:
    """The tables of one entry."""

    tables: Sequence[Table]
    paper: str = ""
    """The paper's figure, in a word or two, for the summary."""
    ours: str = ""
    """The same figure here."""
    notes: str = ""
    """Findings that depend on the run, in Markdown, below the tables."""

    def markdown(self) -> str:
        """The part of a page that the run decides."""
        parts = []
        for table in self.tables:
            parts += [f"{table.title}:" if table.title else "", markdown(table.columns, table.rows)]
        return "\n\n".join(part for part in (*parts, self.notes) if part)
