"""The code on sources of docs/mixtures.md runs, as it stands, one block after the other."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from evenstep.data import open_reader
from page_code import blocks


def test_the_page_runs_from_its_beginning_to_its_end(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(3):
        rows = {"id": list(range(100)), "text": ["some text"] * 100, "more": [0] * 100}
        parquet.write_table(
            arrow.table(rows), tmp_path / f"code-{number}.parquet", row_group_size=30
        )
    page = ModuleType("page_of_sources")  # functions that are pickled must be found by name
    page.folder = tmp_path
    monkeypatch.setitem(sys.modules, page.__name__, page)
    code = blocks("mixtures.md", "Sources")
    assert len(code) == 2
    for block in code:
        exec(compile(block, "mixtures.md", "exec"), page.__dict__)
    assert page.item.position == 100
    with open_reader(page.tokens) as reader:
        assert len(next(reader.read()).sample["input_ids"]) == len("some text")
