"""What one entry of the book found, and where it is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Table:
    """Cells as they are printed, so that a stored table says nothing that its page does not."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Outcome:
    """Tables of one entry, and the one figure of it that the summary shows."""

    tables: Sequence[Table]
    paper: str = ""
    """The paper's figure, in a word or two, for the summary."""
    ours: str = ""
    """The same figure here."""
    notes: str = ""
    """Findings that depend on the run, in Markdown, below the tables."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "ours": self.ours,
            "notes": self.notes,
            "tables": [
                {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
                for t in self.tables
            ],
        }

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Outcome:
        tables = [Table(t["columns"], t["rows"], t["title"]) for t in stored["tables"]]
        return cls(tables, stored["paper"], stored["ours"], stored["notes"])


def place(chapter: str, key: str) -> Path:
    return RESULTS / chapter / f"{key}.json"


def store(chapter: str, key: str, command: str, outcome: Outcome) -> None:
    path = place(chapter, key)
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"command": command, **outcome.as_dict()}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n")


def stored(chapter: str, key: str) -> Outcome:
    return Outcome.of(json.loads(place(chapter, key).read_text()))
