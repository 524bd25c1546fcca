"""Chapters of the book: what is said of each table and figure of one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from benchmarks.papers.book.outcomes import Outcome

State = Literal["reproduced", "smaller", "predicted", "elsewhere"]
STATES: dict[State, str] = {
    "reproduced": "the same quantity, by arithmetic, simulation or a test",
    "smaller": "measured, at a size that two CPU cores can run",
    "predicted": "by a model of costs",
    "elsewhere": "not possible here: it needs their models, GPUs or data",
}
CHAPTERS = ("odb", "wlb", "overlord", "pool_sort")
"""Packages beside this one that hold a module `contents`."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One table, figure, equation or theorem."""

    key: str
    """Names its stored outcome, and its place on the page."""
    item: str
    """As the document calls it: "Table 17"."""
    title: str
    state: State
    differs: str
    """One sentence: why figures differ where they do, or what would be needed."""
    text: str = ""
    """Markdown between the heading and the tables."""
    run: str = ""
    """``module:function``, which takes the seed and returns an `Outcome`; "" if there is none."""
    command: str = ""
    """What shows it, where that is no outcome of the book: a test, or another page's command."""
    slow: bool = False


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One document."""

    name: str
    """Its package, and the folder of its outcomes."""
    page: str
    """Its file in docs/papers."""
    title: str
    head: str
    """Markdown below the title."""
    entries: Sequence[Entry] = field(default=())

    def command(self, entry: Entry) -> str:
        ran = f"python -m benchmarks.papers.book --run {self.name}/{entry.key}"
        return entry.command or (ran if entry.run else "")


def chapters() -> list[Chapter]:
    return [import_module(f"benchmarks.papers.{name}.contents").CHAPTER for name in CHAPTERS]


def outcome_of(entry: Entry, seed: int) -> Outcome:
    module, _, name = entry.run.partition(":")
    outcome: Outcome = getattr(import_module(module), name)(seed)
    return outcome
