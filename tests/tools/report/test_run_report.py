"""Step logs: read and reported."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evenstep as package
from documents import Documents
from evenstep.cli.app import run as evenstep
from evenstep.errors import ConfigurationError
from evenstep.tools.report.run_record import read_run

HEAD = {"started": 1.0, "run": "loader", "ranks": 4}


def step_of(number: int, **given: Any) -> dict[str, Any]:
    moments = {"samples": 2.0, "tokens": 60.0, "mean": 40.0, "second": 0.0, "third": 0.0}
    return {
        "at": 1.0 * number,
        "wait": 0.25,
        "train": 0.75,
        "step": number,
        "tokens": 60,
        "padded_tokens": 80,
        "cost": 60.0,
        "imbalance": 1.5,
        "moments": moments,
        **given,
    }


def write_log(path: Path, steps: int, **given: Any) -> Path:
    lines = [HEAD, *(step_of(number, **given) for number in range(steps))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_time_is_split_into_work_padding_and_waits(tmp_path: Path) -> None:
    run = read_run(write_log(tmp_path / "a.jsonl", 9))
    assert len(run) == 8
    assert run.first_waits == (0.25,)
    assert sum(run.shares.values()) == pytest.approx(1)
    assert run.shares == pytest.approx(
        {"work": 0.375, "padding": 0.125, "ranks": 0.25, "slow": 0, "data": 0.25}
    )
    assert run.tokens_per_second == pytest.approx(60)
    assert run.composition == 1.0  # of equal lengths


def test_the_steps_of_an_update_are_taken_together_and_unfinished_ones_left_out(
    tmp_path: Path,
) -> None:
    """As a trainer writes them that fetches both before it trains."""
    path = write_log(tmp_path / "a.jsonl", 0)
    first = {"train": 0.0, "wait": 0.5, "cost": 100.0, "imbalance": 2.0, "ends_update": False}
    second = {"train": 1.5, "wait": 0.0, "cost": 300.0, "imbalance": 1.0, "padded_tokens": 120}
    with path.open("a") as file:
        for number, given in enumerate([first, second] * 4 + [first]):
            file.write(json.dumps(step_of(number, **given)) + "\n")
    run = read_run(path)
    assert len(run) == 3
    assert run.first_waits == (0.5,)
    assert run.updates["imbalance"] == pytest.approx([500 / 400] * 3)
    work = 0.75 * 400 / 500
    assert run.shares == pytest.approx(
        {"work": 0.6 * work, "padding": 0.4 * work, "ranks": 0.75 - work, "slow": 0, "data": 0.25}
    )
    with path.open("a") as file:
        for given in (second, first, second):
            file.write(json.dumps(step_of(9, imbalance_measured=1.5, **given)) + "\n")
    assert read_run(path).last(1).updates["imbalance_measured"] == 1.5


class SlowDocuments(Documents):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.005)
        return super().__getitem__(index)


def test_a_run_with_slow_data_and_slow_training_is_reported_as_its_loop_saw_it(
    tmp_path: Path,
) -> None:
    loader = package.DataLoader(
        SlowDocuments(96),
        batch_size=6,
        accumulate=2,
        memory=package.Memory(buffer_size=12, prefetch=1),
        step_log=tmp_path / "run.jsonl",
    )
    seen: list[tuple[float, float, int, int]] = []
    steps = loader.steps()
    while True:
        asked = time.monotonic()
        update = list(itertools.islice(steps, 2))  # before it trains on any, as Trainer does
        if not update:
            break
        got = time.monotonic()
        time.sleep(0.02)
        tokens = [(step.tokens, step.padded_tokens) for _, step in update]
        seen.append((got - asked, time.monotonic() - got, *map(sum, zip(*tokens))))
    loader.close()
    waits, trained, real, padded = map(np.array, zip(*seen[1:]))
    run = read_run(tmp_path / "run.jsonl")
    assert len(run) == len(waits) == 7
    whole = (waits + trained).sum()
    assert waits.sum() > 0.2 * whole
    padding = (trained * (1 - real / padded)).sum()
    expected = {
        "work": trained.sum() - padding,
        "padding": padding,
        "ranks": 0,
        "slow": 0,
        "data": waits.sum(),
    }
    assert run.shares == pytest.approx({k: v / whole for k, v in expected.items()}, abs=0.1)


def test_a_log_that_is_being_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.jsonl", 5)
    whole = path.read_text()
    for cut in range(len(whole.split("\n")[0]) + 1, len(whole), 23):
        path.write_text(whole[:cut])
        assert len(read_run(path)) == max(whole[:cut].count("\n") - 2, 0)
    path.write_text(whole + whole)  # a second pass
    run = read_run(path)
    assert (len(run), len(run.first_waits)) == (8, 2)


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"step": 1}', "no JSON", '{"started": 1}'])
def test_what_is_no_step_log_is_refused_by_its_line(line: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.jsonl", 2)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigurationError, match=r"line 4 of .*a\.jsonl"):
        read_run(path)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="there is none"):
        read_run(tmp_path / "empty.jsonl")


def test_the_report_compares_two_runs(tmp_path: Path, capsys: Any) -> None:
    logs = [
        str(write_log(tmp_path / "before.jsonl", 9)),
        str(write_log(tmp_path / "after.jsonl", 9, imbalance=1.0, padded_tokens=60)),
    ]
    assert evenstep(["report", *logs, "--json"]) == 0
    before, after = json.loads(capsys.readouterr().out)["runs"]
    assert before["shares"]["ranks"] == pytest.approx(0.25)
    assert after["shares"] == pytest.approx(
        {"work": 0.75, "padding": 0, "ranks": 0, "slow": 0, "data": 0.25}
    )
    assert evenstep(["report", logs[0]]) == 0
    assert "25.0%" in capsys.readouterr().out
    assert evenstep(["report", str(write_log(tmp_path / "one.jsonl", 1))]) == 2
    assert "no update after the first" in capsys.readouterr().err


def test_slow_ranks_are_named_with_their_share_of_the_time_and_drawn(
    tmp_path: Path, capsys: Any
) -> None:
    path = write_log(tmp_path / "a.jsonl", 5, slow=[])
    slow = [
        {"rank": rank, "share": share, "epoch": 0, "step": 4}
        for rank, share in ((5, 0.6), (2, 0.5))
    ]
    with path.open("a") as file:
        for number in range(4):
            given = {"slow": [{**slow[0], "share": 0.5}, slow[1]] if number else slow}
            file.write(json.dumps(step_of(5 + number, **given)) + "\n")
        file.write(json.dumps(step_of(9, slow=slow[:1])) + "\n")
    run = read_run(path)
    assert run.losses["slow"].tolist() == pytest.approx(
        [0] * 4 + [0.28125] + [0.25] * 3 + [0.28125]
    )
    assert sum(run.shares.values()) == pytest.approx(1)
    shown = run.figures
    assert shown["rank 5 slow since step 4 of epoch 0"] == "60% more time"
    assert shown["rank 2 slow since step 4 of epoch 0"] == "50% more time, until step 9"
    picture = tmp_path / "a.png"
    assert evenstep(["report", str(path), "--json", "--plot", str(picture)]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert [(each["rank"], each["until"]) for each in told["slow"]] == [(5, None), (2, 9)]
    assert picture.read_bytes().startswith(b"\x89PNG")
