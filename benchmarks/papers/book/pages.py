"""Pages of the book: chapters and stored outcomes in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.lib.report import markdown
from benchmarks.papers.book.chapters import STATES, Chapter, Entry
from benchmarks.papers.book.outcomes import Outcome

Find = Callable[[Chapter, Entry], Outcome | None]
"""What is stored of an entry; None of one that has no outcome."""

_HEAD = """# The papers, reproduced

Every table and figure of the four documents that evenstep builds on: what it prints, what evenstep
gets, and why the two differ where they do. Each entry has a page that names its command. All runs
on two CPU cores, without a GPU.

`make papers` runs every entry and writes these pages; `make papers FAST=1` leaves out those that
take minutes or want a quiet machine, and keeps what is stored of them. `make papers
ONLY=odb/table-17` runs one. What the runs gave is kept in `benchmarks/papers/results/`. What is
simulated comes out the same in every run with the same seed.
"""


def pages(chapters: Sequence[Chapter], find: Find) -> dict[str, str]:
    """Text of every file of docs/papers, by its name."""
    result = {"index.md": _index(chapters, find)}
    result.update({chapter.page: _page(chapter, find) for chapter in chapters})
    return result


def _index(chapters: Sequence[Chapter], find: Find) -> str:
    counts = [
        [
            f"[{chapter.title}]({chapter.page})",
            *(str(sum(e.state == state for e in chapter.entries)) for state in STATES),
        ]
        for chapter in chapters
    ]
    means = "\n".join(f"- *{state}*: {meaning}." for state, meaning in STATES.items())
    parts = [_HEAD, markdown(["document", *STATES], counts), means]
    for chapter in chapters:
        rows = []
        for entry in chapter.entries:
            outcome = find(chapter, entry) or Outcome([])
            link = f"[{entry.item}]({chapter.page}#{entry.key})"
            row = [link, entry.title, entry.state, outcome.paper, outcome.ours, entry.differs]
            rows.append(row)
        header = ["", "what it shows", "here", "paper", "evenstep", "why they differ"]
        parts += [f"## {chapter.title}", _left(header, rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _page(chapter: Chapter, find: Find) -> str:
    parts = [f"# {chapter.title}", chapter.head]
    for entry in chapter.entries:
        parts.append(f"## {entry.item}: {entry.title} {{ #{entry.key} }}")
        parts.append(f"*{entry.state.capitalize()}.* {entry.differs}")
        if command := chapter.command(entry):
            parts.append(f"```\n{command}\n```")
        parts.append(entry.text)
        outcome = find(chapter, entry) or Outcome([])
        for table in outcome.tables:
            parts += [f"{table.title}:" if table.title else "", markdown(table.columns, table.rows)]
        parts.append(outcome.notes)
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _left(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
