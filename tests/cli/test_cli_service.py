"""``evenstep service``: a job is run, looked at and ended by commands alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("zmq", reason="pyzmq is not installed")

import command_line
from command_line import Capture

import evenstep.service as es
from evenstep.tools.report.run_record import read_run

JOB = """
import json, pathlib
import evenstep.service as es

rows = [{"input_ids": list(range(2, 4 + i % 20))} for i in range(60)]
path = pathlib.Path(__file__).with_name("rows.jsonl")
path.write_text("".join(json.dumps(row) + "\\n" for row in rows))


def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").balance("greedy").plan()


job = es.Job(
    sources=[es.Source("rows", str(path))], mesh=es.Mesh(DP=1), strategy=strategy,
    draws=es.DrawOptions(samples_per_step=8, stop="first_exhausted"), max_tokens=256,
)
"""
NAME = f"by-command-{os.getpid()}"


def evenstep(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return command_line.run(capsys, "service", *arguments)


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    """Of its status."""
    folder: Path
    """In which it was started."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """`evenstep service run` in a process of its own."""
    (tmp_path / "a_job.py").write_text(JOB)
    command = ["-m", "evenstep", "service", "run", "a_job.py", "--backend", "processes", "--json"]
    command += ["--name", NAME, "--plan-log", "plans.jsonl", "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *command, "--step-log", "run.jsonl"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("running"):
                break
        else:
            pytest.fail("".join(lines))
        (told,) = [line for line in lines if line.startswith("status at ")]
        yield Running(process, told.split()[-1], tmp_path)
        process.kill()


def test_a_job_runs_to_its_end_and_can_be_looked_at(running: Running, capsys: Capture) -> None:
    with es.Client("auto", NAME, rank=0) as client:
        next(client)
        code, out, _ = evenstep(capsys, "status", "--name", NAME)
        assert code == 0
        told = json.loads(out)
        assert [(each["rank"], each["step"]) for each in told["clients"]] == [(0, 1)]
        with urllib.request.urlopen(running.url, timeout=20) as answer:
            assert json.load(answer)["clients"] == told["clients"]
        code, out, _ = evenstep(capsys, "plan", "--name", NAME, "--step", "1", "--json")
        assert code == 0
        assert json.loads(out)["step"] == 1
        code, _, err = evenstep(capsys, "plan", "--name", NAME, "--step", "99")
        assert code == 2
        assert "no step 99" in err
        taken = 1 + sum(1 for _ in client)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 0, err
    told = json.loads(out)
    assert told["ended"]
    assert told["steps"]["steps"] == taken > 3
    assert len((running.folder / "plans.jsonl").read_text().splitlines()) == taken
    # Written by the client of rank 0; of the pass the first step is left out.
    assert len(read_run(running.folder / "run.jsonl")) == taken - 1 > 2


@pytest.mark.soak
def test_a_job_that_is_terminated_says_so_by_its_exit_code(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=60) == 128 + signal.SIGTERM


def test_what_is_not_there_is_said(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "no_job.py").write_text("job = 3\n")
    code, _, err = evenstep(capsys, "run", str(tmp_path / "no_job.py"))
    assert code == 2
    assert "is a int" in err
    code, _, err = evenstep(capsys, "plan", "--step", "1", "--log", str(tmp_path / "none"))
    assert code == 2
    assert "no file" in err
