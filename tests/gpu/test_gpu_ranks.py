"""A job with a rank on each GPU: pinned batches, and gradients of one big batch.

On the CPU two ranks run the same script."""

from __future__ import annotations

from pathlib import Path

import gpu_job
import pytest
import torch
from devices import GPU
from script_jobs import run_script
from update_checks import Update, check_epoch


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("device", "backend"),
    [
        pytest.param("cpu", "gloo", marks=pytest.mark.soak),  # other tests train by it
        pytest.param("cpu", "cpu:gloo", marks=pytest.mark.soak),
        pytest.param("cuda", "nccl", marks=GPU),
        pytest.param("cuda", "cpu:gloo,cuda:nccl", marks=GPU),
        pytest.param("cuda", "gloo", marks=GPU),
    ],
)
def test_every_update_of_all_ranks_is_that_of_one_batch(
    tmp_path: Path, device: str, backend: str
) -> None:
    ranks = torch.cuda.device_count() if device == "cuda" else 2
    reports = run_script(Path(gpu_job.__file__), ranks, tmp_path, device=device, backend=backend)
    updates = [
        [Update(u["samples"], u["steps"], gradient=torch.tensor(u["gradient"])) for u in report]
        for report in reports
    ]
    check_epoch(updates, gpu_job.ACCUMULATE, rate=gpu_job.RATE)
