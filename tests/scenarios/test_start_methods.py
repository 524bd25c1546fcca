"""Workers start beside busy threads and from any script; a killed trainer leaves no fork server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from faults import WITHIN, Sticky, loader_over, train
from ranks import Job, Rank

from documents import Documents

TESTS = str(Path(__file__).parents[1])
BUSY = """
import faulthandler, importlib, logging, os, sys, threading
import torch
import evenstep
from documents import Documents

logger = logging.getLogger("busy")
logger.addHandler(logging.FileHandler(os.devnull))
MODULES = ["colorsys", "mailbox", "wave", "tarfile", "unittest.mock", "xml.dom.minidom"]

end = threading.Event()

def keep_busy(number):
    while not end.wait(0.01):
        sys.modules.pop(MODULES[number], None)
        importlib.import_module(MODULES[number])
        logger.warning("a message of thread %d", number)
        memory = [bytearray(1 << size) for size in range(16)]
        torch.randn(300, 300, requires_grad=True).sum().backward()

threads = [threading.Thread(target=keep_busy, args=(number,), daemon=True) for number in range(6)]
for thread in threads:
    thread.start()
loader = evenstep.DataLoader(Documents(64), policy=evenstep.Even(1024), num_workers=2)
for number in range({passes}):
    faulthandler.dump_traceback_later(100, exit=True)
    assert sum(len(step.indices) for _, step in loader.steps()) == 64
end.set()
for thread in threads:
    thread.join()
print("whole")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "passes",
    [2, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_passes_that_begin_beside_busy_threads_do_not_hang(passes: int) -> None:
    script = BUSY.format(passes=passes)
    assert said_by([sys.executable, "-W", "error::RuntimeWarning", "-c", script]) == "whole"


TELLING = """
import psutil
from documents import Documents

class Telling(Documents):
    def __getitem__(self, index):
        server = psutil.Process().parent().ppid()
        return {"server": server, **super().__getitem__(index)}
"""
MAIN = """
import os
import threading
import evenstep

def main():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    loader = evenstep.DataLoader(Telling(16), batch_size=4, num_workers=1)
    (server,) = {int(one) for batch in loader for one in batch["server"]}
    print("forked" if server == os.getpid() else "served")
"""
GUARD = '\nif __name__ == "__main__":\n    main()\n'
SPAWN = """
import torch.multiprocessing as mp

def rank(number):
    main()

if __name__ == "__main__":
    mp.{start}
"""
SPAWNED = SPAWN.format(start="spawn(rank)")
FORKED = SPAWN.format(start='start_processes(rank, start_method="forkserver")')
# Says that it runs, whoever runs it.
RUNS = """
if __name__ == "__main__":
    import os
import pathlib, time
with (pathlib.Path(__file__).parent / "runs").open("a") as log:
    log.write(__name__ + " ")
"""


def soak(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.soak)


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("script", "how", "runs"),
    [
        slow(TELLING + MAIN + GUARD, "served", ""),  # also in tests/loader/test_start.py
        slow(TELLING + MAIN + RUNS + GUARD, "forked", "__main__"),
        slow("from telling import Telling\n" + MAIN + RUNS + "\nmain()\n", "served", "__main__"),
        slow(TELLING + MAIN + SPAWNED, "served", ""),
        soak(TELLING + MAIN + RUNS + SPAWNED, "forked", "__main__ __mp_main__"),
        soak(TELLING + MAIN + FORKED, "served", ""),
    ],
    ids=[
        "guarded",
        "guarded but for a file",
        "dataset of a module",
        "spawned ranks",
        "spawned ranks, guarded but for a file",
        "ranks of a fork server",
    ],
)
def test_any_script_works_and_runs_once(tmp_path: Path, script: str, how: str, runs: str) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    (tmp_path / "script.py").write_text(script)
    assert said_by([sys.executable, "script.py"], tmp_path) == how
    log = tmp_path / "runs"
    assert (log.read_text().split() if log.exists() else []) == runs.split()


def said_by(command: list[str], folder: Path | None = None) -> str:
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def beside_a_thread() -> None:
    """Where a fork of the trainer would copy what another thread holds."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def train_beside(rank: Rank, *arguments: Any) -> None:
    beside_a_thread()
    train(rank, *arguments)


def make_and_wait(rank: Rank) -> None:
    beside_a_thread()
    loader = loader_over(Documents(100), num_workers=2)
    rank.say("training")
    rank.heard(0, "nothing", within=60)
    loader.close()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (train_beside, ({"num_workers": 2}, Sticky(200))),
        (make_and_wait, ()),
    ],
    ids=["stuck worker", "server still starting"],
)
def test_a_killed_trainer_leaves_no_fork_server_behind(
    tmp_path: Path, function: Any, arguments: tuple[Any, ...]
) -> None:
    with Job(function, 1, *arguments, folder=tmp_path) as job:
        job.heard(0, "training", within=60)
        job.signal(0, signal.SIGKILL)
        job.join(WITHIN)
