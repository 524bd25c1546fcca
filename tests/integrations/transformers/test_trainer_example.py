"""The example of the guide, as its first lines say to run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "transformers_trainer.py"


def launch(ranks: int, folder: Path, example: Path = EXAMPLE) -> dict:
    """The state of the last checkpoint."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*command, f"--nproc-per-node={ranks}", example, folder],
        check=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    return json.loads((checkpoints(folder)[-1] / "trainer_state.json").read_text())


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def test_it_trains_and_goes_on_with_another_number_of_ranks(tmp_path) -> None:
    whole = launch(2, tmp_path)
    assert whole["epoch"] == 2.0
    for later in checkpoints(tmp_path)[1:]:
        shutil.rmtree(later)
    again = launch(1, tmp_path)
    assert again["epoch"] == 2.0
    losses = [entry["loss"] for entry in again["log_history"] if "loss" in entry]
    assert losses[-1] < losses[0]
