"""DeepSpeed under Accelerate: samples, equal steps, gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("deepspeed")

from script_jobs import run_script
from update_checks import Update, check_epoch

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("stage", "accumulate"), [(2, 3), (3, 1), (3, 3)])
def test_every_update_on_two_ranks_is_that_of_one_batch(
    tmp_path: Path, stage: int, accumulate: int
) -> None:
    script = Path(__file__).with_name("deepspeed_job.py")
    told = run_script(script, 2, tmp_path, stage=stage, accumulate=accumulate)
    ranks = [
        [Update(u["samples"], u["steps"], gradient=torch.tensor(u["gradient"])) for u in updates]
        for updates in told
    ]
    check_epoch(ranks, accumulate, rate=1.0)
