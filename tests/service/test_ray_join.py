"""A job started in one shell is joined from another by the line that it prints, and nothing else;
and leaves nothing behind.

Recent releases of Ray ask for a token by default. These processes have no variable of this one's
environment, and a home directory of their own for the token.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import having_token, shell, until

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("typer")

JOB = """
import json, pathlib
import evenstep.service as es

path = pathlib.Path(__file__).with_name("rows.jsonl")
if not path.exists():  # each role imports this, and a file may not change while it is read
    path.write_text("".join(json.dumps({"input_ids": [1] * 8}) + "\\n" for _ in range(64)))


def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").balance("greedy").plan()


job = es.Job(
    sources=[es.Source("rows", str(path))], mesh=es.Mesh(DP=1), strategy=strategy,
    draws=es.DrawOptions(samples_per_step=8), max_tokens=256,
)
"""
TRAINER = """
import evenstep.service as es
from evenstep.service.client.joining import attach

with {client} as client:
    micro_batches, step = next(client)
print(len(micro_batches), attach({address!r}, "shells").status()["clients"][0]["step"])
"""


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with shell(tmp_path) as env:
        yield env


@pytest.fixture
def printed(env: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """What `evenstep service run` tells trainers to write."""
    (tmp_path / "a_job.py").write_text(JOB)
    command = [sys.executable, "-m", "evenstep", "service", "run", "a_job.py", "--name", "shells"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        said = ""
        for line in run.stderr:
            said += line
            if found := re.search(r"trainers: (es\.Client\(.*\))", line):
                yield found[1]
                break
        else:
            pytest.fail(f"the service did not start: {said}")
        assert len(having_token()) > 3
        run.terminate()
        run.communicate(timeout=60)
        until(lambda: not having_token(), "the end of all processes of the service")


@pytest.mark.slow
def test_another_shell_joins_by_the_line_that_is_printed(printed: str, env: dict[str, str]) -> None:
    address = re.findall(r"'(.*?)'", printed)[0]
    trainer = subprocess.run(
        [sys.executable, "-c", TRAINER.format(client=printed, address=address)],
        env={**env, "RANK": "0"},
        capture_output=True,
        text=True,
    )
    assert trainer.stdout.split() == ["1", "1"], trainer.stderr
