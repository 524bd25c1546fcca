"""Jobs of a script under torchrun, for trainers that change the process they run in.

The script is given its arguments as JSON, and writes what every rank has to report into a folder.
It finds the helpers of the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

WITHIN = 400.0  # seconds; a hang takes longer
_MARK = "SCRIPT_JOB"  # in the environment of all processes of a job
_TESTS = Path(__file__).parents[1]
_HELPERS = [
    str(_TESTS / part) for part in ("", "integrations", "integrations/transformers", "scenarios")
]


def run_script(
    script: Path, ranks: int, folder: Path, *, dies: bool = False, **arguments: Any
) -> list[Any]:
    """The reports of all ranks.

    Args:
        dies: whether the ranks kill themselves; not all of these report.
    """
    for old in folder.glob("*.json"):
        old.unlink()
    torchrun(ranks, script, json.dumps({"folder": str(folder), **arguments}), log=folder, dies=dies)
    reports = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) for path in reports if path.exists() or not dies]


def torchrun(
    ranks: int, script: Path, *arguments: str, log: Path, dies: bool = False, **environ: str
) -> str:
    """What a job says.

    Args:
        log: folder of its log.
        environ: added to its environment.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(script), *arguments]
    fixed = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", _MARK: str(log)}
    environment = {**os.environ, **fixed, **environ}
    paths = [*_HELPERS, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with (log / "log").open("w") as file:
        job = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        code = job.wait(WITHIN)
    finally:
        _end(str(log))
    said = (log / "log").read_text()
    assert (code != 0) == dies, said[-6000:]
    assert not dies or "SIGKILL" in said, said[-6000:]
    return said


def _end(folder: str) -> None:
    """Ends what is left of a job: a trainer's own helpers may outlive ranks that are killed."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == folder:
                process.kill()
