"""The example of a job that is resumed does what its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "resume.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
# What torchrun sets for one rank: starting it takes longer than the rank.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def launch(*command: str, **environ: str) -> list[tuple[str, str]]:
    """The checkpoints that are saved, and the number of ranks."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr.replace("FutureWarning", ""), done.stderr
    return re.findall(r"step-(\d+) on (\d) ranks", done.stdout)


def test_a_stopped_job_resumes_on_fewer_ranks(tmp_path: Path) -> None:
    example = (EXAMPLE, "--folder", str(tmp_path), "--stop-after")
    assert launch(*TORCHRUN, *example, "6") == [("00004", "2"), ("00005", "2")]
    assert launch(*example, "5", **ALONE) == [("00009", "1"), ("00010", "1")]
