"""Pages of the book: chapters and stored outcomes in, Markdown out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.lib.report import markdown
from benchmarks.papers.book.chapters import STATES, Chapter, Entry
from benchmarks.papers.book.outcomes import Outcome

Find = Callable[[Chapter, Entry], Outcome | None]
"""What is stored of an entry; None of one that has no outcome."""

_HEAD = """# The papers, reproduced

evenstep builds on four documents. Each page below has the tables and figures of one document:
what it prints, what evenstep gets, why the two differ, and the command. All runs used two CPU
cores and no GPU.

`make papers` runs every entry and writes these pages. `make papers FAST=1` skips entries that
take minutes or need a quiet machine, and keeps their stored results. `make papers
ONLY=odb/table-17` runs one entry. `benchmarks/papers/results/` has the complete tables of every
run. Simulations give the same result in every run with the same seed.
"""


def pages(chapters: Sequence[Chapter], find: Find) -> dict[str, str]:
    """Text of every file of docs/papers, by its name."""
    result = {"index.md": _index(chapters)}
    result.update({chapter.page: _page(chapter, find) for chapter in chapters})
    return result


def _index(chapters: Sequence[Chapter]) -> str:
    counts = [
        [
            f"[{chapter.title}]({chapter.page})",
            *(str(sum(e.state == state for e in chapter.entries)) for state in STATES),
        ]
        for chapter in chapters
    ]
    means = "\n".join(f"- *{state}*: {meaning}." for state, meaning in STATES.items())
    return "\n\n".join([_HEAD.strip(), markdown(["document", *STATES], counts), means]) + "\n"


def _page(chapter: Chapter, find: Find) -> str:
    rows, tested, missing = [], [], []
    for entry in chapter.entries:
        outcome = find(chapter, entry)
        if entry.state == "elsewhere":
            missing.append(entry.item)
        elif outcome is None:
            tested.append(entry)
        else:
            item = f"{entry.item}: {entry.title}"
            rows.append([item, entry.state, outcome.paper, outcome.ours, entry.differs, entry.key])
    header = ["", "here", "paper", "evenstep", "why they differ", "key"]
    lines = [header, ["---"] * len(header), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = f"`python -m benchmarks.papers.book --run {chapter.name}/KEY` runs an entry."
    parts = [f"# {chapter.title}", chapter.head.strip(), note, table]
    parts += ["## Shown by tests and other commands"]
    parts += ["\n".join(_shown(chapter, entry) for entry in tested)]
    if missing:
        parts += [f"Not here, because they need the paper's models or GPUs: {', '.join(missing)}."]
    return "\n\n".join(parts) + "\n"


def _shown(chapter: Chapter, entry: Entry) -> str:
    differs = "" if entry.differs == "Nothing differs." else f" {entry.differs}"
    return f"- {entry.item}: {entry.title}.{differs} `{chapter.command(entry)}`"
