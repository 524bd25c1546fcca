"""The command on a real Ray of this machine, with four real ranks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("ray", reason="ray is not installed")

from evenstep.cli import main

PROGRAM = "import sys; from evenstep.cli import main; main(sys.argv[1:])"
SETTLED = 60.0  # seconds that processes may take to be gone
PATIENCE = 300.0  # seconds within which four ranks have made their first steps


def soak(test: Any) -> Any:
    """A dozen processes start for it, which takes long where others run."""
    return pytest.mark.soak(pytest.mark.timeout(600)(test))


def parquet(path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    draw = random.Random(0)
    rows = [
        {"source": f"kind {n % 7}", "text": f"{n} " + "abcd " * int(draw.lognormvariate(2, 1))}
        for n in range(140)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a process of its own, as ranks and Ray inherit from it."""
    command = [sys.executable, "-c", PROGRAM, "demo-service", "--out", str(folder / "out")]
    return subprocess.Popen(
        [*command, "--samples-per-step", "8", "--max-length", "128", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=SETTLED)
    return not alive


@soak
def test_text_from_many_sources_is_delivered_checked_and_reported(tmp_path: Path) -> None:
    data = parquet(tmp_path / "text.parquet")
    process = start(tmp_path, "--data", str(data), "--steps", "4", "--live", "--json")
    printed, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    result = json.loads(printed)
    assert len(printed.splitlines()) == 1
    assert "checked the samples delivered" in notes
    assert result["data"]["sources"] == 7
    assert list(result["runs"]) == ["vanilla", "balanced"]
    for name, run in result["runs"].items():
        assert run["steps"] == 4
        assert run["samples"] + result["checked"][name]["carried"] == 4 * 8
        assert len(run["by_rank"]["backbone"]) == 4
        assert run["last_loss"] < run["first_loss"]
    planned = {name: run["planned"]["backbone"] for name, run in result["runs"].items()}
    assert planned["balanced"] < planned["vanilla"]
    for picture in result["pictures"]:
        assert Path(picture).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == result


@soak
def test_encoder_and_backbone_are_balanced_apart(tmp_path: Path) -> None:
    process = start(tmp_path, "--vision", "--steps", "3")
    printed, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    assert "imbalance of the encoder, measured" in printed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["runs"]) == ["vanilla", "apart"]
    assert result["same_samples"]
    planned = {name: run["planned"] for name, run in result["runs"].items()}
    assert planned["apart"]["backbone"] < planned["vanilla"]["backbone"]
    losses = [run["first_loss"] for run in result["runs"].values()]
    assert losses == pytest.approx([losses[0]] * 2, rel=1e-5)


@soak
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, sent: signal.Signals) -> None:
    data = parquet(tmp_path / "text.parquet")
    process = start(tmp_path, "--data", str(data), "--steps", "5000")
    begun = wait_for(process, "vanilla:  ")
    left = descendants(process)
    assert len(left) > 8, begun
    process.send_signal(sent)
    process.communicate(timeout=SETTLED)
    assert process.returncode != 0
    assert gone(left)


@soak
def test_a_rank_that_dies_ends_the_demo_and_is_named(tmp_path: Path) -> None:
    data = parquet(tmp_path / "text.parquet")
    process = start(tmp_path, "--data", str(data), "--steps", "5000")
    wait_for(process, "vanilla:  ")
    left = descendants(process)
    rank = next(each for each in left if "spawn_main" in " ".join(each.cmdline()))
    os.kill(rank.pid, signal.SIGKILL)
    _, notes = process.communicate(timeout=SETTLED)
    assert process.returncode == 2
    assert "failed: killed by SIGKILL" in notes
    assert gone(left)


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """What it says until it says this."""
    said, until = "", time.monotonic() + PATIENCE
    assert process.stderr is not None
    while words not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
        assert time.monotonic() < until, said
    return said


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo-service", "--help"])
    assert stop.value.code == 0
    assert "evenstep demo-service --vision" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "nowhere.parquet"], "nowhere.parquet does not exist"),
        (["--vision", "--live"], "leave out --live and --data"),
        (["--samples-per-step", "7"], "must be a multiple of 4"),
    ],
)
def test_wrong_options_are_one_line_with_the_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo-service", *arguments])
    assert stop.value.code == 2
    captured: Any = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
