"""The example of a job that is resumed does what its first lines say."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import Rank, run

EXAMPLES = Path(__file__).parents[2] / "examples"


def resume(rank: Rank, *arguments: str) -> list[tuple[str, str]]:
    """The checkpoints that this rank says it has saved, and the number of ranks."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(dist, "init_process_group", lambda backend: None)  # the ranks have one
        patch.setattr(sys, "argv", ["resume.py", *arguments])
        patch.syspath_prepend(EXAMPLES)
        runpy.run_path(str(EXAMPLES / "resume.py"), run_name="__main__")
    return re.findall(r"step-(\d+) on (\d) ranks", said.getvalue())


def test_a_stopped_job_resumes_on_fewer_ranks(tmp_path: Path) -> None:
    arguments = ("--folder", str(tmp_path / "saved"), "--stop-after")
    for name in ("saved", "first", "second"):
        (tmp_path / name).mkdir()
    first = run(resume, 2, *arguments, "6", folder=tmp_path / "first")
    assert first == [[("00004", "2"), ("00005", "2")], []]
    second = run(resume, 1, *arguments, "5", folder=tmp_path / "second")
    assert second == [[("00009", "1"), ("00010", "1")]]
