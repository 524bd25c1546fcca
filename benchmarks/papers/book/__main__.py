"""Writes docs/papers from stored outcomes; ``--run`` makes outcomes anew first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.book.chapters import Chapter, Entry, chapters, outcome_of
from benchmarks.papers.book.outcomes import Outcome, store, stored
from benchmarks.papers.book.pages import pages

DOCS = Path(__file__).parents[3] / "docs" / "papers"


def find(chapter: Chapter, entry: Entry) -> Outcome | None:
    return stored(chapter.name, entry.key) if entry.run else None


def chosen(
    found: Sequence[Chapter], wanted: Sequence[str], fast: bool
) -> list[tuple[Chapter, Entry]]:
    """Entries to run: those named, or all of the chapters named, or all."""
    names = {f"{chapter.name}/{e.key}" for chapter in found for e in chapter.entries if e.run}
    for name in wanted:
        if not any(name in (known, known.split("/")[0]) for known in names):
            raise SystemExit(f"{name} is no entry that runs; there are {', '.join(sorted(names))}")
    return [
        (chapter, entry)
        for chapter in found
        for entry in chapter.entries
        if entry.run
        and not (fast and entry.slow)
        and (not wanted or {chapter.name, f"{chapter.name}/{entry.key}"} & set(wanted))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python -m benchmarks.papers.book --run odb/table-17"
    )
    parser.add_argument("--run", nargs="*", metavar="CHAPTER[/KEY]", help="run these; all if empty")
    parser.add_argument("--fast", action="store_true", help="leave slow entries as stored")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = chapters()
    began = time.perf_counter()
    for chapter, entry in [] if options.run is None else chosen(found, options.run, options.fast):
        start = time.perf_counter()
        outcome = outcome_of(entry, options.seed)
        store(chapter.name, entry.key, chapter.command(entry), outcome)
        print(f"{chapter.name}/{entry.key}: {time.perf_counter() - start:.1f} s", flush=True)
    DOCS.mkdir(exist_ok=True)
    for name, text in pages(found, find).items():
        (DOCS / name).write_text(text)
    print(f"{DOCS}: {len(found) + 1} pages, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
