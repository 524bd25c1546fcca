"""A killed trainer leaves no process behind, however its workers started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import WITHIN, Sticky, train
from ranks import Job

TESTS = str(Path(__file__).parents[1])


def test_a_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    (long := tmp_path / ("long" * 25)).mkdir()
    code = (
        "import evenstep; from documents import Documents\n"
        "loader = evenstep.DataLoader(Documents(9), policy=evenstep.FixedBatch(3), num_workers=1,"
        " multiprocessing_context='forkserver')\n"
        "try: list(loader)\n"
        "except evenstep.errors.LoaderDiedError as error: print(error)"
    )
    paths = os.pathsep.join([TESTS, *filter(None, sys.path)])
    environment = {**os.environ, "TMPDIR": str(long), "PYTHONPATH": paths}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert "set TMPDIR to a shorter one" in said


@pytest.mark.parametrize("method", [None, "spawn"])
def test_a_killed_trainer_leaves_no_process_behind(tmp_path: Path, method: Any) -> None:
    options = {"num_workers": 2, "multiprocessing_context": method}
    with Job(train, 1, options, Sticky(200), folder=tmp_path) as job:
        job.heard(0, "training", within=60)
        job.signal(0, signal.SIGKILL)
        job.join(WITHIN)
