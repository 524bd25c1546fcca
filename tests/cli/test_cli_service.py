"""``evenstep service``: a job is run, looked at and ended by commands alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
from evenstep.cli.service_sizing import loaders_of
from evenstep.cli.shared_options import load_object
from evenstep.errors import ConfigurationError, MeshChangedError
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
    (tmp_path / "weights.json").write_text("null")
    command += ["--name", NAME, "--port", "0", "--weights", "weights.json"]
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


def test_a_running_job_is_looked_at_and_changed_by_commands_and_ends(
    running: Running, capsys: Capture
) -> None:
    def change(*arguments: str) -> dict[str, object]:
        code, out, err = evenstep(capsys, *arguments, "--name", NAME)
        assert code == 0, err
        return dict(json.loads(out)) if out else {}

    with es.Client("auto", NAME, rank=0) as client:
        taken: list[object] = [next(client)]
        code, out, _ = evenstep(capsys, "status", "--name", NAME)
        assert code == 0
        clients = json.loads(out)["clients"]
        assert [(each["rank"], each["step"]) for each in clients] == [(0, 1)]
        with urllib.request.urlopen(running.url, timeout=20) as answer:
            assert json.load(answer)["clients"] == clients
        code, out, _ = evenstep(capsys, "plan", "--name", NAME, "--step", "1", "--json")
        assert code == 0
        assert json.loads(out)["step"] == 1
        told = change("set-weights", "rows=2", "--dry-run")
        assert told["after"] == {"rows": 2.0}
        assert change("set-weights", "rows=2", "--at-step", "5")["step"] == 5
        assert change("cancel", "--at-step", "5")["kind"] == "cancel"
        code, _, err = evenstep(capsys, "drop-source", "rows", "--name", NAME)
        assert (code, "positive weight" in err) == (2, True)
        code, _, err = evenstep(capsys, "set-weights", "rows:2", "--name", NAME)
        assert (code, "SOURCE=WEIGHT" in err) == (2, True)
        for command in (("pause",), ("resume",), ("scale", "2"), ("remesh", "DP=1")):
            change(*command)
        code, out, _ = evenstep(capsys, "status", "--name", NAME)
        assert len(json.loads(out)["loaders"]) == 2
        (running.folder / "weights.json").write_text('{"rows": 3}')
        begin = time.monotonic()
        while "weights" not in [each["kind"] for each in change("status")["planner"]["changes"]]:
            assert time.monotonic() < begin + 60
            time.sleep(0.1)
        change("drain")
        with pytest.raises(MeshChangedError):
            taken.extend(client)
    with es.Client("auto", NAME, rank=0) as client:
        code, _, err = evenstep(capsys, "plan", "--name", NAME, "--step", "99")
        assert (code, "no step 99" in err) == (2, True)
        taken.extend(client)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 0, err
    assert "weights of weights.json from step" in err
    told = json.loads(out)
    assert told["ended"]
    assert told["steps"]["steps"] == len(taken) > 3
    # Written by the clients of rank 0; of each one's pass the first step is left out.
    assert len(read_run(running.folder / "run.jsonl")) == len(taken) - 2 > 1


def test_what_is_not_there_is_said(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "no_job.py").write_text("job = 3\n")
    code, _, err = evenstep(capsys, "run", str(tmp_path / "no_job.py"))
    assert code == 2
    assert "is a int" in err
    (tmp_path / "job.py").write_text(JOB)
    code, _, err = evenstep(capsys, "run", str(tmp_path / "job.py"), "--resume", "auto")
    assert code == 2
    assert "add --store URL" in err


# Sizing


def test_a_job_is_measured_and_sized(tmp_path: Path, capsys: Capture, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    job = tmp_path / "sized_job.py"
    job.write_text(JOB)
    layout = tmp_path / "layout.json"
    options = ["--samples", "4", "--memory", "1000", "--step-seconds"]
    code, out, err = evenstep(capsys, "advise", str(job), *options, "0.5", "--layout", str(layout))
    assert code == 0, err
    advised = json.loads(out)
    costs = advised.pop("costs")
    assert {name: each["samples"] for name, each in costs.items()} == {"rows": 4}
    assert len(advised["loaders"]) == 1
    assert advised["shortages"] == []
    assert json.loads(json.dumps(loaders_of(str(layout)).as_dict())) == advised

    code, out, err = evenstep(capsys, "advise", str(job), *options, "0.00001")
    assert code == 0, err
    assert json.loads(out)["shortages"]
    assert "would starve: needs" in err


# Names of objects on the command line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        ("documents:nothing", "documents has no 'nothing'"),
        ("documents", "must be FILE.py:NAME or package.module:NAME"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_object(name)
