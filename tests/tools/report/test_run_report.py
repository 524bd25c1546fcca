"""Step logs: read and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    assert "no step after the first" in capsys.readouterr().err


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


def test_images_are_shown_of_the_runs_that_have_any(tmp_path: Path) -> None:
    text = read_run(write_log(tmp_path / "text.jsonl", 5))
    both = read_run(write_log(tmp_path / "both.jsonl", 5, images=7))
    assert both.figures["images of a step"] == "7.0"
    assert set(both.figures) - set(text.figures) == {"images of a step"}


def test_the_last_steps_alone_are_reported(tmp_path: Path, capsys: Any) -> None:
    path = write_log(tmp_path / "a.jsonl", 9)
    with path.open("a") as file:
        file.writelines(json.dumps(step_of(9 + n, imbalance=1.0)) + "\n" for n in range(4))
    assert evenstep(["report", str(path), "--last", "4", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["steps"] == 4
    assert run["shares"]["ranks"] == 0
