"""What a run of the book found: tables, and the figures of them that the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lib.report import Table

__all__ = ["Outcome", "Table"]


@dataclass(frozen=True)
class Outcome:
    """The tables of one entry."""

    tables: Sequence[Table]
    paper: str
    """The paper's figures that the page shows."""
    ours: str
    """The same figures here."""

    def markdown(self) -> str:
        """All that a run prints."""
        row = f"The page's row: paper {self.paper}; evenstep {self.ours}"
        return "\n\n".join([*(table.markdown() for table in self.tables), row])
