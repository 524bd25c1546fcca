"""The book of the papers: entries have their places, and give again what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.papers import book

ROOT = Path(__file__).parents[1]
PAGE = book.PAGE.read_text()


def test_every_entry_has_a_row_of_the_page() -> None:
    assert sorted(re.findall(r" \| (\w+/\S+) \|$", PAGE, re.MULTILINE)) == sorted(book.RUNS)
    assert set(book.RUNS) >= book.SLOW


def test_the_page_names_tests_that_exist() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_an_unknown_entry_is_named() -> None:
    with pytest.raises(SystemExit, match=r"odb/table-99 is no entry that runs; there are "):
        book.chosen(["odb/table-99"], fast=False)
    assert book.chosen(["pool_sort"], fast=True) == [n for n in book.RUNS if "pool" in n]


def test_a_run_writes_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "PAGE", tmp_path / "papers.md")
    book.PAGE.write_text(PAGE.replace("| 0 missing | 0 missing |", "| lost | lost |"))
    assert book.PAGE.read_text() != PAGE
    book.write("odb/table-5", book.outcome_of("odb/table-5", seed=0))
    assert book.PAGE.read_text() == PAGE
