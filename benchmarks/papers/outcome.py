"""What a run of the book found: tables, and the one figure that the summary shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lib.report import Table

__all__ = ["Outcome", "Table"]


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
        parts = [table.markdown() for table in self.tables]
        return "\n\n".join(part for part in (*parts, self.notes) if part)
