"""``evenstep index``: after it, a start reads no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("pyarrow")

import pyarrow
import pyarrow.parquet
from command_line import Capture, figures

from evenstep.cli.shared_options import load_job
from evenstep.data import file_index, open_readers

JOB = """
import evenstep.service as es

FOLDER = {folder!r}
job = es.Job(
    sources=[
        es.Source("web", f"{{FOLDER}}/web-*.jsonl", block=7),
        es.Source("code", f"{{FOLDER}}/*.parquet"),
        es.Source("list", [{{"input_ids": [1, 2]}}] * 5),
    ],
    mesh=es.Mesh(DP=1), strategy=lambda graph, mesh, step: graph.plan(), max_tokens=256,
    draws=es.DrawOptions(samples_per_step=8),
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With 90 rows in three JSON Lines files and 40 in two Parquet files."""
    monkeypatch.setenv(file_index.FOLDER_VARIABLE, str(tmp_path / "elsewhere"))
    monkeypatch.setattr(file_index, "_LEAST", 1)
    rows = [{"input_ids": list(range(n % 20 + 1))} for n in range(30)]
    for part in range(3):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"web-{part}.jsonl").write_text(text)
    for part in range(2):
        table = pyarrow.Table.from_pylist(rows[:20])
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
    return tmp_path


def test_a_start_after_it_makes_no_entry(folder: Path, capsys: Capture, monkeypatch) -> None:
    name = "job_of_index"
    (folder / f"{name}.py").write_text(JOB.format(folder=str(folder)))
    monkeypatch.syspath_prepend(str(folder))
    given = (f"{folder}/{name}.py", "--out", f"{folder}/out")
    size = sum(p.stat().st_size for p in folder.iterdir() if p.suffix in (".jsonl", ".parquet"))
    found = figures(capsys, "index", *given)
    assert found == {
        "sources": 2,
        "samples": 130,
        "files": 5,
        "bytes": size,
        "kept": 0,
        "made": 5,
    }
    assert not (folder / "elsewhere").exists()
    monkeypatch.setenv(file_index.FOLDER_VARIABLE, f"{folder}/out")
    sources = load_job(f"{folder}/{name}.py").sources
    with file_index.watched() as counts:
        for reader in open_readers(sources):
            _ = reader.fingerprint
    assert (counts.kept, counts.made) == (5, 0)
    (folder / "web-3.jsonl").write_text("{}\n" * 100)
    again = figures(capsys, "index", *given)
    assert (again["samples"], again["kept"], again["made"]) == (230, 5, 1)
