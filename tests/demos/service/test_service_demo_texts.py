"""Texts to sources on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.service import texts
from evenstep_demos.service.encode import pieces_of, tokens_of
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.stored import stored_or_none
from evenstep_demos.service.texts import functions_of, text_sources


@given(st.text(max_size=300), st.integers(4, 50))
def test_pieces_are_the_text_and_none_is_too_long(text: str, most: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    pieces = pieces_of(text, most)
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= most for piece in pieces)
    if text.isascii():
        assert len(pieces) == -(-len(text) // most)


def test_a_function_is_a_document_with_what_follows_its_head() -> None:
    code = "import os\n\ndef a():\n    return 1\n\nclass B:\n    x = 1\n    async def c(): ...\n"
    assert functions_of(code) == [
        "def a():\n    return 1\n\n",
        "class B:\n    x = 1\n",
        "    async def c(): ...\n",
    ]
    assert functions_of("x = 'def'\n") == ["x = 'def'\n"]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_rows_of_parquet_become_the_sources_that_they_name(tmp_path: Path) -> None:
    rows = [{"kind": f"s{n % 3}", "body": f"text {n} " + "x" * n * 5} for n in range(60)]
    rows += [{"kind": "s0", "body": " "}, {"kind": "s0", "body": rows[0]["body"]}]
    options = ServiceDemoOptions(
        data=[parquet(tmp_path / "a.parquet", rows)],
        column="body",
        source_column="kind",
        sources=2,
        max_length=64,
        out=tmp_path / "out",
    )
    told: list[tuple[int, int]] = []
    stored = text_sources(options, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    assert list(stored.samples) == ["s0", "s1"]
    assert stored.facts == {"found": 62, "taken": 42, "documents": 42, "unusable": 2, "cut": 32}
    texts_of = {
        name: [stored.row(SampleId(name, 0, i))["text"] for i in range(count)]
        for name, count in stored.samples.items()
    }
    for name, pieces in texts_of.items():
        whole = sorted(row["body"] for row in rows[:60] if row["kind"] == name)
        assert "".join(sorted("".join(pieces))) == "".join(sorted("".join(whole)))
        assert max(len(piece) for piece in pieces) <= 64


def test_sources_are_written_again_only_for_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = parquet(tmp_path / "a.parquet", [{"source": "s", "text": f"text {n}"} for n in range(5)])
    options = ServiceDemoOptions(data=[data], out=tmp_path / "out")
    first = text_sources(options)
    written = first.path("s").stat().st_mtime_ns
    assert text_sources(options) == first
    assert first.path("s").stat().st_mtime_ns == written
    parquet(data, [{"source": "s", "text": f"another text {n}"} for n in range(6)])
    assert text_sources(options).samples == {"s": 6}
    assert stored_or_none(tmp_path / "out" / "sources", "something else") is None


def test_python_code_below_the_roots_is_grouped_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lib"
    for folder, count in (("a", 6), ("b/c", 5), ("b", 4), ("d", 1), ("__pycache__", 9)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            name = f"{folder} {number}".replace("/", "_").replace(" ", "_")
            (root / folder / f"{name}.py").write_text(f"def {name}():\n    return {number}\n")
    (root / "a" / "bad.py").write_bytes(b"# coding: nonsense\n\xff")
    monkeypatch.setattr(texts, "_roots", lambda: [root])
    stored = text_sources(ServiceDemoOptions(out=tmp_path / "out", sources=3))
    assert stored.samples == {"python/a": 6, "python/b/c": 5, "python/b": 4}
    assert (stored.facts["found"], stored.facts["unusable"]) == (17, 1)
    row = stored.row(SampleId("python/b", 0, 2))
    assert bytes(tokens_of(row)["input_ids"]).decode() == row["text"]


def test_a_column_that_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    data = parquet(tmp_path / "a.parquet", [{"source": "s", "body": "text"}])
    with pytest.raises(ConfigurationError, match=r"no column 'text'; it has source, body"):
        text_sources(ServiceDemoOptions(data=[data], out=tmp_path / "out"))
