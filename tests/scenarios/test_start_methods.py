"""Workers start beside busy threads and from any script; a killed trainer leaves no fork server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
import evenstep

def main():
    loader = evenstep.DataLoader(Telling(16), batch_size=4, num_workers=1)
    (server,) = {int(one) for batch in loader for one in batch["server"]}
    print("forked" if server == os.getpid() else "served")
"""
GUARD = '\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("script", "how"),
    [
        (TELLING + MAIN + GUARD, "served"),
        (TELLING + MAIN + "\nmain()\n", "forked"),
        pytest.param(
            "from telling import Telling\n" + MAIN + "\nmain()\n", "served", marks=pytest.mark.soak
        ),
    ],
    ids=["guarded", "not guarded", "not guarded, dataset of a module"],
)
def test_any_script_works(tmp_path: Path, script: str, how: str) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    (tmp_path / "script.py").write_text(script)
    assert said_by([sys.executable, str(tmp_path / "script.py")]) == how


def said_by(command: list[str]) -> str:
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def make_and_wait(rank: Rank) -> None:
    loader = loader_over(Documents(100), num_workers=2)
    rank.say("training")
    rank.heard(0, "nothing", within=60)
    loader.close()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (train, ({"num_workers": 2}, Sticky(200))),
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
