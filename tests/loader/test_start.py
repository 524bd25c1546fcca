"""How batchers and workers start: from any script, in ranks of multiprocessing, beside threads."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import evenstep
from documents import Documents
from loader_options import grouped

TESTS = str(Path(__file__).parents[1])
MAIN = """
import contextlib, os
import psutil
import evenstep
from documents import Documents

with open("runs", "a") as log:
    log.write(__name__ + " ")

class Telling(Documents):
    def __getitem__(self, index):
        batcher = psutil.Process().parent()
        return {"trainer": batcher.ppid(), **super().__getitem__(index)}

def main(rank=0):
    here = lambda batch: batch  # cannot be pickled
    loader = evenstep.DataLoader(
        Telling(16), batch_size=4, num_workers=1, worker_init_fn=lambda _: here
    )
    with contextlib.closing(loader):
        trainers = [int(one) for batch in loader for one in batch["trainer"]]
    assert trainers == [os.getpid()] * 16
    print("whole")
"""
RANKS = """
if __name__ == "__main__":
    import torch.multiprocessing
    torch.multiprocessing.spawn(main)
"""


@pytest.mark.parametrize(
    ("ends", "runs"), [("\nmain()\n", "__main__"), (RANKS, "__main__ __mp_main__")]
)
def test_a_script_needs_no_guard_and_ranks_may_be_spawned(
    tmp_path: Path, ends: str, runs: str
) -> None:
    (tmp_path / "script.py").write_text(MAIN + ends)
    assert said_by([sys.executable, "script.py"], tmp_path) == "whole"
    assert (tmp_path / "runs").read_text().split() == runs.split()


def said_by(command: list[str], folder: Path) -> str:
    paths = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


class Locked(Documents):
    """Documents behind a lock that a thread of the trainer holds."""

    def __init__(self) -> None:
        super().__init__(8)
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> dict[str, object]:
        with self.lock:
            return super().__getitem__(index)


@pytest.fixture
def held() -> Iterator[Locked]:
    dataset, taken, end = Locked(), threading.Event(), threading.Event()

    def hold() -> None:
        with dataset.lock:
            taken.set()
            end.wait()

    thread = threading.Thread(target=hold, name="holder")
    thread.start()
    taken.wait()
    yield dataset
    end.set()
    thread.join()


def test_a_wait_for_a_lock_that_was_copied_names_the_thread_and_a_remedy(
    held: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"batch_size": 4, "num_workers": 1, "timeout": 8, "warn_after": 1}
    loader = evenstep.DataLoader(held, **grouped(**options))
    with (
        contextlib.closing(loader),
        caplog.at_level(logging.WARNING, "evenstep"),
        pytest.raises(evenstep.errors.LoaderDiedError),
    ):
        list(loader)
    said = [text for text in caplog.messages if "forked beside threads" in text]
    assert "holder)" in said[0]
    assert 'multiprocessing_context="forkserver"' in said[0]


def test_a_dataset_that_cannot_be_pickled_is_named_where_the_start_method_needs_it() -> None:
    loader = evenstep.DataLoader(
        Locked(), batch_size=4, num_workers=1, multiprocessing_context="forkserver"
    )
    with pytest.raises(evenstep.errors.ConfigurationError, match=r"cannot pickle '_thread\.lock'"):
        list(loader)


@pytest.mark.slow
def test_a_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    code = (
        "import evenstep; from documents import Documents\n"
        "loader = evenstep.DataLoader(Documents(9), policy=evenstep.FixedBatch(3), num_workers=1,"
        " multiprocessing_context='forkserver')\n"
        "try: list(loader)\n"
        "except evenstep.errors.LoaderDiedError as error: print(error)"
    )
    environment = {**os.environ, "TMPDIR": str(folder)}
    paths = os.pathsep.join([TESTS, *filter(None, sys.path)])
    said = subprocess.check_output(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": paths}, text=True
    )
    assert "set TMPDIR to a shorter one" in said
