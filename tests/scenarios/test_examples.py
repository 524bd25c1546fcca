"""The examples do what their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def torchrun(ranks: int, script: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(EXAMPLES / script), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr.replace("FutureWarning", ""), done.stderr
    return done.stdout


def test_a_stopped_job_resumes_on_fewer_ranks(tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path)]
    first = torchrun(2, "resume.py", *folder, "--stop-after", "6")
    assert re.findall(r"step-(\d+) on (\d) ranks", first) == [("00004", "2"), ("00005", "2")]
    second = torchrun(1, "resume.py", *folder, "--stop-after", "5")
    assert re.findall(r"step-(\d+) on (\d) ranks", second) == [("00009", "1"), ("00010", "1")]
