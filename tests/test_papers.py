"""The book of the papers: its pages are what stored outcomes give, and outcomes are made again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.papers.book.__main__ import DOCS, chosen, find
from benchmarks.papers.book.chapters import chapters, outcome_of
from benchmarks.papers.book.outcomes import RESULTS, place, stored
from benchmarks.papers.book.pages import pages

BOOK = chapters()
ENTRIES = [(chapter, entry) for chapter in BOOK for entry in chapter.entries]


def test_the_pages_are_what_the_stored_outcomes_give() -> None:
    texts = pages(BOOK, find)
    assert {path.name for path in DOCS.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (DOCS / name).read_text() == text, "run python -m benchmarks.papers.book"


def test_every_stored_outcome_has_an_entry_and_its_command() -> None:
    commands = {place(c.name, e.key): c.command(e) for c, e in ENTRIES if e.run}
    assert set(RESULTS.glob("*/*.json")) == set(commands)
    for path, command in commands.items():
        assert json.loads(path.read_text())["command"] == command


def test_entries_have_a_name_of_their_own_and_a_reason() -> None:
    for chapter in BOOK:
        assert max(Counter(entry.key for entry in chapter.entries).values()) == 1
    for chapter, entry in ENTRIES:
        assert entry.differs.endswith("."), (chapter.name, entry.key)
        assert chapter.command(entry) or entry.state == "elsewhere", (chapter.name, entry.key)


def test_commands_name_tests_that_exist() -> None:
    root = Path(__file__).parents[1]
    for chapter, entry in ENTRIES:
        for word in entry.command.split():
            if word.startswith("tests/"):
                assert (root / word.partition("::")[0]).exists(), (chapter.name, entry.key)


def test_an_unknown_entry_is_named() -> None:
    with pytest.raises(SystemExit, match=r"odb/table-99 is no entry that runs; there are "):
        chosen(BOOK, ["odb/table-99"], fast=False)


def test_an_entry_gives_again_what_is_stored() -> None:
    (found,) = chosen(BOOK, ["odb/table-5"], fast=True)
    again = outcome_of(found[1], seed=0)
    assert again.as_dict() == stored("odb", "table-5").as_dict()
