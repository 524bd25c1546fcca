"""The code of docs/service.md runs, and so does the example."""

from __future__ import annotations

import re
import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from service_world import rows, tokens_of_row, write_jsonl, write_parquet

import evenstep.service as es
from example_output import check_printed
from page_code import blocks

ROOT = Path(__file__).parents[2]


def test_the_job_of_the_page_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parquet(tmp_path / "code" / "0.parquet", rows(400, 0, 900))
    write_jsonl(tmp_path / "web.jsonl", rows(400, 1000, 900))
    trained: list[float] = []
    names: dict[str, Any] = {
        "data": str(tmp_path),
        "tokenize": tokens_of_row,
        "train": lambda batch, scale: trained.append(scale),
    }
    (page,) = blocks("service.md", "A job")
    code = page.replace("es.start(job)", 'es.start(job, backend="local")')
    assert "backend" in code
    exec(compile(code, "service.md", "exec"), names)
    assert names["step"].step == 3
    assert len(trained) == 16
    assert {i.source for ids in names["step"].sample_ids for i in ids} == {"web"}
    assert names["step"].imbalance < names["step"].imbalance_before
    (loop,) = blocks("service.md", "What a client gets")
    exec(compile(loop, "service.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    ids = [sample for ids in names["step"].sample_ids for sample in ids]
    assert printed == [f"web: sample {i.index} of shard {i.shard}" for i in ids]
    stored = [number for batch in names["micro_batches"] for number in batch["id"].tolist()]
    assert stored == [1000 + shard * 1024 + index for _, shard, index in ids]


def test_the_job_of_a_policy_trains(tmp_path: Path) -> None:
    long = [{"id": k, "length": 40 + 37 * k % 900} for k in range(400)]
    jsonl = write_jsonl(tmp_path / "web.jsonl", long)
    names: dict[str, Any] = {
        "es": es,
        "sources": [es.Source("web", str(jsonl), transform=tokens_of_row)],
    }
    (page,) = blocks("service.md", "A policy")
    exec(compile(page, "service.md", "exec"), names)
    with es.start(names["job"], backend="local") as service:
        steps = list(islice(service.client(0), 4))  # the first of a small window
    for micro_batches, step in steps:
        assert len(micro_batches) == 2
        assert step.imbalance < 1.02 < step.imbalance_before


def test_the_example_of_pretraining_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "pretraining.py"), run_name="__main__")
    printed = capsys.readouterr().out
    check_printed("pretraining.py", printed)
    lines = printed.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"step {step}" for step in range(10)]
    assert max(float(line.split()[-1]) for line in lines) < 1.01


def test_the_example_prints_steps_of_all_ranks_that_fetch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "service.py"))["main"]
    main("local")
    printed = capsys.readouterr().out
    check_printed("service.py", printed)
    assert printed.count("fetches nothing") == 4
    assert len(re.findall(r"rank (\d): micro-batches of", printed)) == 8 * 4
    gains = re.findall(r"imbalance ([\d.]+) -> ([\d.]+)", printed)
    assert len(gains) == 8
    assert all(float(after) <= float(before) for before, after in gains)
