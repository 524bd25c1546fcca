"""A job outlives the process that started it, and ends by itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_cluster import having_token, shell, until
from service_world import job_of
from test_ray_join import JOB

import evenstep.service as es
from evenstep.errors import ConfigurationError

pytest.importorskip("ray", reason="ray is not installed")

Run = Callable[..., str]
TRAINER = """
import evenstep.service as es

with es.Client({address!r}, "left", rank=0) as client:
    print(sum(1 for _ in zip(range({steps}), client)))
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs Python in a process of its own, beside a Ray that nobody of these has started."""
    with shell(tmp_path) as env, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()

        def run(*command: str) -> str:
            done = subprocess.run(
                [sys.executable, *(each.replace("ADDRESS", address) for each in command)],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=150,
            )
            return done.stdout + (done.stderr if done.returncode else "")

        ray = ("-m", "ray.scripts.scripts")
        options = ("--num-cpus=4", "--include-dashboard=false")
        run(*ray, "start", "--head", "--port", address.split(":")[1], *options)
        yield run
        run(*ray, "stop", "--force")
        until(lambda: not having_token(), "the end of Ray")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_goes_on_without_the_command_that_started_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a_job.py").write_text(JOB)
    service = ("-m", "evenstep", "service")
    there = ("--address", "ADDRESS", "--name", "left")
    events = tmp_path / "events.jsonl"
    start = (*service, "run", "a_job.py", *there, "--detached", "20", "--events", str(events))
    assert run(*start) == ""
    assert "already running" in run(*start)
    trainer = TRAINER.replace("{address!r}", '"ADDRESS"')
    assert run("-c", trainer.format(steps=3)).split() == ["3"]
    assert run(*service, "scale", "2", *there) == ""
    assert len(json.loads(run(*service, "status", *there))["loaders"]) == 2
    assert run(*service, "end", *there) == ""
    until(lambda: "no job named" in run(*service, "status", *there), "the end of the job")
    assert run(*start) == ""  # and by itself
    assert run("-c", trainer.format(steps=2)).split() == ["2"]
    until(lambda: "no job named" in run(*service, "status", *there), "the end of an idle job")
    assert '"idle"' in events.read_text()


def test_a_ray_that_ends_with_this_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    job = job_of(Path("."), sources=[es.Source("a", [{"input_ids": [1]}])], mesh={"DP": 1})
    with pytest.raises(ConfigurationError, match=r"detached=5, but .* `ray start --head`"):
        es.start(job, ray=es.RayOptions(detached=5.0))
    with pytest.raises(ConfigurationError, match="detached=-1"):
        es.RayOptions(detached=-1.0)
