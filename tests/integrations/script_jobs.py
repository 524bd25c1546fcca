"""Jobs of a script under torchrun, for trainers that change the process they run in.

The script is given its arguments as JSON, and writes what every rank has to report into a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WITHIN = 240.0  # seconds; a hang takes longer


def run_script(
    script: Path, ranks: int, folder: Path, *, dies: bool = False, **arguments: Any
) -> list[Any]:
    """The reports of all ranks.

    Args:
        dies: whether the ranks kill themselves.
    """
    for old in folder.glob("*.json"):
        old.unlink()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(script)]
    command.append(json.dumps({"folder": str(folder), **arguments}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN, check=False, env=environment
    )
    assert (done.returncode != 0) == dies, done.stderr[-6000:]
    assert not dies or "SIGKILL" in done.stderr, done.stderr[-6000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
