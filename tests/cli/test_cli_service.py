from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
pytest.importorskip("typer")
pytest.importorskip("ray", reason="ray is not installed")

import command_line
import ray
from command_line import Capture

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


def evenstep(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return command_line.run(capsys, "service", *arguments)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
    )
    yield
    ray.shutdown()


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    """Of its status."""
    folder: Path
    """In which it was started."""


@pytest.fixture(scope="module")
def running(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`evenstep service run` in a process of its own."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "a_job.py").write_text(JOB)
    address = ray.get_runtime_context().gcs_address
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "evenstep", "service", "run", "a_job.py", "--json"),
            *("--address", address, "--plan-log", "plans.jsonl", "--port", "0"),
            *("--step-log", "run.jsonl"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("running"):
            break
    else:
        pytest.fail("".join(lines))
    (told,) = [line for line in lines if line.startswith("status at ")]
    yield Running(process, told.split()[-1], folder)
    process.kill()
    process.communicate()


@pytest.mark.soak
def test_a_job_runs_to_its_end_and_can_be_looked_at(
    running: Running, capsys: Capture, tmp_path: Path
) -> None:
    from evenstep.service import Client

    client = Client("auto", rank=0)
    next(client)
    code, out, _ = evenstep(capsys, "status")
    assert code == 0
    told = json.loads(out)
    assert told["clients"] == [
        {"rank": 0, "step": 1, "wait_seconds": pytest.approx(client.wait_seconds), "ended": False}
    ]
    with urllib.request.urlopen(running.url, timeout=20) as answer:
        assert json.load(answer)["clients"] == told["clients"]
    code, out, err = evenstep(capsys, "plan", "--step", "1", "--json")
    assert code == 0
    assert json.loads(out)["step"] == 1
    code, _, err = evenstep(capsys, "plan", "--step", "99")
    assert code == 2
    assert "no step 99" in err

    taken = 1 + sum(1 for _ in client)
    out, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 0, err
    told = json.loads(out)
    assert told["ended"]
    assert told["steps"]["steps"] == taken > 3
    assert len(read_run(running.folder / "run.jsonl")) == taken - 1  # but the first of the pass


def test_the_client_of_rank_0_writes_the_step_log(tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    from evenstep.service import Client

    (tmp_path / "a_job.py").write_text(JOB)
    name = f"logged-{os.getpid()}"
    command = ["-m", "evenstep", "service", "run", "a_job.py", "--backend", "processes"]
    with subprocess.Popen(
        [sys.executable, *command, "--name", name, "--step-log", "run.jsonl"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("running") for line in process.stderr)
        client = Client("auto", name, rank=0)
        taken = sum(1 for _ in client)
        client.close()
        process.stderr.read()
        assert process.wait(timeout=60) == 0
    # Of the pass the first step is left out.
    assert len(read_run(tmp_path / "run.jsonl")) == taken - 1 > 2


@pytest.mark.soak
@pytest.mark.usefixtures("cluster")
def test_what_is_not_there_is_said(capsys: Capture, tmp_path: Path) -> None:
    code, _, err = evenstep(capsys, "status", "--name", "nobody")
    assert code == 2
    assert "no job named 'nobody'" in err
    (tmp_path / "no_job.py").write_text("job = 3\n")
    code, _, err = evenstep(capsys, "run", str(tmp_path / "no_job.py"))
    assert code == 2
    assert "is a int" in err
    code, _, err = evenstep(capsys, "plan", "--step", "1", "--log", str(tmp_path / "none"))
    assert code == 2
    assert "no file" in err


@pytest.mark.soak
def test_a_job_that_is_terminated_ends_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "a_job.py").write_text(JOB)
    token = f"EVENSTEP_TEST_{os.getpid()}_TERMINATED"
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", "service", "run", "a_job.py"],
        cwd=tmp_path,
        env={**os.environ, token: "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(line.startswith("running") for line in process.stderr)
    assert len(having(token)) > 3
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    until = time.monotonic() + 20
    while having(token) and time.monotonic() < until:
        time.sleep(0.2)
    assert having(token) == []


def having(token: str) -> list[int]:
    """Processes whose environment has a variable."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if token in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@pytest.mark.parametrize("command", ["run", "status", "plan"])
def test_help_has_an_example(capsys: Capture, command: str) -> None:
    code, out, _ = evenstep(capsys, command, "--help")
    assert code == 0
    assert f"evenstep service {command}" in out
