"""The book of the papers: entries have their places, and give again what their pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.papers import book

ROOT = Path(__file__).parents[1]
PAGES = {name: (book.DOCS / page).read_text() for name, page in book.PAGES.items()}


def test_every_entry_has_a_row_of_its_page() -> None:
    for chapter, text in PAGES.items():
        keys = [f"{chapter}/{key}" for key in re.findall(r" \| (\S+) \|$", text, re.MULTILINE)]
        assert [k for k in keys if k in book.RUNS] == [
            k for k in keys if not k.endswith(("/key", "/---"))
        ]
        assert sorted(set(keys) & set(book.RUNS)) == sorted(
            key for key in book.RUNS if key.startswith(f"{chapter}/")
        )
        assert f"`python -m benchmarks.papers.book --run {chapter}/KEY`" in text
    assert set(book.RUNS) >= book.SLOW


def test_commands_name_tests_that_exist() -> None:
    for text in PAGES.values():
        for path in re.findall(r"(?<!\S)(tests/[\w/.]+)", text):
            assert (ROOT / path).exists(), path


def test_an_unknown_entry_is_named() -> None:
    with pytest.raises(SystemExit, match=r"odb/table-99 is no entry that runs; there are "):
        book.chosen(["odb/table-99"], fast=False)
    assert book.chosen(["pool_sort"], fast=True) == [n for n in book.RUNS if "pool" in n]


def test_a_run_writes_what_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odb.md").write_text(
        PAGES["odb"].replace("| 0 missing | 0 missing |", "| lost | lost |")
    )
    assert (tmp_path / "odb.md").read_text() != PAGES["odb"]
    monkeypatch.setattr(book, "DOCS", tmp_path)
    book.write("odb/table-5", book.outcome_of("odb/table-5", seed=0))
    assert (tmp_path / "odb.md").read_text() == PAGES["odb"]
