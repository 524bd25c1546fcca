"""The command on a real Ray of this machine, with four real ranks."""

from __future__ import annotations

import json
import os
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


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a process of its own, as ranks and Ray inherit from it."""
    command = [sys.executable, "-c", PROGRAM, "demo-service", "--out", str(folder / "out")]
    return subprocess.Popen(
        [*command, "--sources", "20", *arguments],
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
def test_code_from_many_sources_is_delivered_checked_and_reported(tmp_path: Path) -> None:
    process = start(tmp_path, "--steps", "4", "--json")
    printed, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    result = json.loads(printed)
    assert len(printed.splitlines()) == 1
    assert "checked the samples delivered" in notes
    assert result["data"]["sources"] == 20
    assert list(result["runs"]) == ["vanilla", "balanced"]
    for run in result["runs"].values():
        assert run["steps"] == 4
        assert len(run["by_rank"]) == 4
        assert run["last_loss"] < run["first_loss"]
    vanilla, balanced = result["runs"].values()
    assert balanced["planned"] < vanilla["planned"]
    assert balanced["samples"] == vanilla["samples"] == 4 * 24
    assert balanced["first_loss"] == pytest.approx(vanilla["first_loss"], rel=1e-5)
    assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == result


@soak
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, sent: signal.Signals) -> None:
    process = start(tmp_path, "--steps", "5000")
    begun = wait_for(process, "vanilla:  ")
    left = descendants(process)
    assert len(left) > 8, begun
    process.send_signal(sent)
    process.communicate(timeout=SETTLED)
    assert process.returncode != 0
    assert gone(left)


@soak
def test_a_rank_that_dies_ends_the_demo_and_is_named(tmp_path: Path) -> None:
    process = start(tmp_path, "--steps", "5000")
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
    assert "evenstep demo-service --steps 50 --json" in capsys.readouterr().out


def test_a_wrong_folder_is_one_line_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(SystemExit) as stop:
        main(["demo-service", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    captured: Any = capsys.readouterr()
    assert "is a file; name a folder" in captured.err
    assert len(captured.err.splitlines()) == 1
