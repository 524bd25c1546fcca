"""ZeRO-3 and steps in which one rank has no image: with a blank they train as in one process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("transformers", minversion="5.23")

from script_jobs import run_script

from blank_job import check

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="no DeepSpeed"),
]
SCRIPT = Path(__file__).with_name("blank_loop.py")


def test_a_blank_lets_a_rank_without_an_image_train(tmp_path: Path) -> None:
    told = run_script(SCRIPT, 2, tmp_path)
    check([(rows, torch.tensor(parameters)) for rows, parameters in told])
