"""Files are written whole or not at all, and read only as written; the step log of loaders and
clients says what the trainer saw."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import evenstep
import evenstep.service as es
from documents import Documents
from evenstep.errors import ConfigurationError
from evenstep.files import replacing, write_whole


def test_what_was_written_replaces_the_file_but_no_pipe(tmp_path: Path) -> None:
    target, pipe = tmp_path / "file.txt", tmp_path / "pipe"
    for text in ("first", "second"):
        with replacing(target) as partial:
            partial.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert target.read_text() == text
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="device or pipe"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [target, pipe]


# Step logs


def loader_of(path: Path) -> evenstep.DataLoader:
    return evenstep.DataLoader(Documents(40), policy=evenstep.TokenBudget(256), step_log=path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_loader_writes_a_line_for_each_step_of_each_pass(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = loader_of(path)
    seen = []
    for number in range(2):
        seen.append([])
        for _, step in loader.steps():
            seen[number].append(step)
            time.sleep(0.02)
    loader.close()
    first, *lines = lines_of(path)
    assert (first["run"], first["ranks"]) == ("loader", 1)
    second = next(n for n, line in enumerate(lines) if "started" in line)
    passes = lines[:second], lines[second + 1 :]
    for taken, written in zip(seen, passes):
        assert len(written) == len(taken) > 5
        for step, line in zip(taken, written):
            assert {name: line[name] for name in step.to_line()} == step.to_line()
            assert line["tokens"] == step.global_tokens
            assert line["padded_tokens"] == step.global_padded_tokens
            assert line["moments"]["mean"] == pytest.approx(
                float(step.totals.moments.together().mean)
            )
        assert all(0.02 <= line["train"] < 30 and line["wait"] >= 0 for line in written)
        ends = [line["at"] + line["train"] for line in written]
        assert all(end <= line["at"] for end, line in zip(ends, written[1:]))  # one after the other


def test_a_client_writes_a_line_for_each_step(tmp_path: Path) -> None:
    table = pyarrow.table({"n": np.arange(200) % 40 + 1})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")

    def tokens(row: Any) -> Any:
        return {"input_ids": list(range(row["n"]))}

    def strategy(graph: Any, mesh: Any, step: int) -> Any:
        return graph.mix().distribute("DP").balance("greedy").plan()

    source = es.Source("a", tmp_path / "a.parquet", transform=tokens)
    job = es.Job(
        sources=[source],
        mesh=es.Mesh(DP=2),
        strategy=strategy,
        max_tokens=128,
        micro_batches=2,
        collate="pad",
    )
    path = tmp_path / "run.jsonl"
    with es.start(job, backend="local") as service:
        clients = [service.client(rank) for rank in range(2)]
        clients[1].log_steps(path)
        taken = [[next(client) for client in clients] for _ in range(4)]
    first, *lines = lines_of(path)
    assert (first["run"], first["ranks"]) == ("service", 2)
    assert [line["step"] for line in lines] == [0, 1, 2]
    for ranks, line in zip(taken, lines):
        for number, (batches, step) in enumerate(ranks):
            assert (step.rank, step.world_size, step.client) == (number, 2, number)
            masks = [batch["attention_mask"] for batch in batches]
            assert step.samples == len(step.indices) == sum(map(len, masks))
            assert step.tokens == sum(int(mask.sum()) for mask in masks)
            assert step.padded_tokens == sum(mask.numel() for mask in masks)
            supervised = [int((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
            assert step.supervised_tokens == sum(supervised)
            total = step.global_supervised_tokens
            assert step.loss_scales == pytest.approx([2 * each / total for each in supervised])
            assert step.loss_scale == pytest.approx(sum(step.loss_scales))
            assert step.sources == {"a": (step.samples, step.tokens)}
            assert step.global_sources == {"a": (step.global_samples, step.global_tokens)}
            json.dumps(step.to_dict())
        steps = [step for _, step in ranks]
        assert steps[0].to_line() == steps[1].to_line()
        for name in ("samples", "tokens", "padded_tokens", "cost", "supervised_tokens"):
            total = sum(getattr(step, name) for step in steps)
            assert getattr(steps[0], f"global_{name}") == pytest.approx(total)
        names = ("samples", "tokens", "padded_tokens")
        assert [line[name] for name in names] == [
            getattr(steps[0], f"global_{name}") for name in names
        ]
        costs = [step.cost for step in steps]
        assert line["imbalance"] == pytest.approx(max(costs) / (sum(costs) / 2))
        lengths = np.array(
            [int(row.sum()) for batches, _ in ranks for b in batches for row in b["attention_mask"]]
        )
        assert line["moments"]["mean"] == pytest.approx((lengths**2).sum() / lengths.sum())
