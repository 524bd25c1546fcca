"""The book of the papers: entries have their places, and give again what their pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.papers import book

ROOT = Path(__file__).parents[1]
PAGES = {name: (book.DOCS / page).read_text() for name, page in book.PAGES.items()}
INDEX = (book.DOCS / "index.md").read_text()


def test_every_entry_has_its_part_of_a_page_and_its_command() -> None:
    parts = [
        (name, key) for name, text in PAGES.items() for key in re.findall("<!-- (.*/.*) -->", text)
    ]
    assert sorted(key for _, key in parts) == sorted(book.RUNS)
    for name, key in parts:
        assert key.startswith(f"{name}/")
        assert f"\npython -m benchmarks.papers.book --run {key}\n" in PAGES[name]
    assert set(book.RUNS) >= book.SLOW


def test_the_index_has_every_entry_of_the_pages() -> None:
    for name, text in PAGES.items():
        keys = re.findall(r"^## .* \{ #(\S+) \}$", text, re.MULTILINE)
        assert re.findall(rf"\]\({book.PAGES[name]}#(\S+)\) \|", INDEX) == keys


def test_commands_name_tests_that_exist() -> None:
    for text in PAGES.values():
        for path in re.findall(r"(?<!\S)(tests/[\w/.]+)", text):
            assert (ROOT / path).exists(), path


def test_an_unknown_entry_is_named() -> None:
    with pytest.raises(SystemExit, match=r"odb/table-99 is no entry that runs; there are "):
        book.chosen(["odb/table-99"], fast=False)
    assert book.chosen(["pool_sort"], fast=True) == [n for n in book.RUNS if "pool" in n]


def test_an_entry_gives_again_what_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ("odb.md", "index.md"):
        (tmp_path / page).write_text((book.DOCS / page).read_text().replace("0 missing", "lost"))
    monkeypatch.setattr(book, "DOCS", tmp_path)
    book.write("odb/table-5", book.outcome_of("odb/table-5", seed=0))
    assert (tmp_path / "odb.md").read_text() == PAGES["odb"]
    row = next(line for line in INDEX.splitlines() if "odb.md#table-5)" in line)
    assert row in (tmp_path / "index.md").read_text().splitlines()
