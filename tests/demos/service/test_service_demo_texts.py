"""Texts to sources on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.service import sources
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.sources import functions_of, text_sources
from evenstep_demos.service.strategies import tokens_of


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        (
            "import os\n\ndef a():\n    return 1\n\nclass B:\n    x = 1\n    async def c(): ...\n",
            ["def a():\n    return 1\n\n", "class B:\n    x = 1\n", "    async def c(): ...\n"],
        ),
        ("x = 'def'\n", ["x = 'def'\n"]),
        ("# coding: nonsense\n", [""]),
    ],
)
def test_a_function_is_a_document_with_what_follows_its_head(
    tmp_path: Path, code: str, functions: list[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text(code)
    assert functions_of(path) == functions


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
    assert stored.samples == {"s0": 20, "s1": 20}
    assert stored.facts == {"found": 62, "documents": 42, "unusable": 2, "cut": 32}
    for name, count in stored.samples.items():
        found = {stored.row(SampleId(name, 0, i))["text"] for i in range(count)}
        assert found == {row["body"][:64] for row in rows[:60] if row["kind"] == name}


def test_no_character_is_cut_in_two(tmp_path: Path) -> None:
    data = parquet(tmp_path / "a.parquet", [{"source": "s", "text": "a" + "\u00e9" * 40}])
    stored = text_sources(ServiceDemoOptions(data=[data], max_length=64, out=tmp_path / "out"))
    assert stored.row(SampleId("s", 0, 0))["text"] == "a" + "\u00e9" * 31


def test_python_code_is_grouped_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "lib"
    for folder, count in (
        ("a", 6),
        ("b/c", 3),
        ("b/c/d", 2),
        ("b", 4),
        ("d", 1),
        ("__pycache__", 9),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            name = f"{folder} {number}".replace("/", "_").replace(" ", "_")
            (root / folder / f"{name}.py").write_text(f"def {name}():\n    return {number}\n")
    (root / "a" / "bad.py").write_bytes(b"# coding: nonsense\n\xff")
    paths = {"stdlib": str(root), "purelib": str(tmp_path / "none")}
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: paths)
    stored = text_sources(ServiceDemoOptions(out=tmp_path / "out", sources=3))
    assert stored.samples == {"a": 6, "b/c": 5, "b": 4}
    assert (stored.facts["found"], stored.facts["unusable"]) == (17, 1)
    row = stored.row(SampleId("b", 0, 2))
    assert bytes(tokens_of(row)["input_ids"]).decode() == row["text"]


def test_a_column_that_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    data = parquet(tmp_path / "a.parquet", [{"source": "s", "body": "text"}])
    with pytest.raises(ConfigurationError, match=r"no column 'text'; it has source, body"):
        text_sources(ServiceDemoOptions(data=[data], out=tmp_path / "out"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples_per_step": 10}, "samples_per_step=10 must be a multiple of 4"),
        ({"data": [Path("nowhere.parquet")]}, "nowhere.parquet does not exist"),
        ({"vision": True, "live": True}, "leave out --live and --data"),
    ],
)
def test_wrong_options_are_refused_before_any_work(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ServiceDemoOptions(**given)
