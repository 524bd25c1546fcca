"""The examples that train by Trainer, as their first lines say to run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(400)]
EXAMPLES = Path(__file__).parents[3] / "examples"


def launch(ranks: int, folder: Path, example: str) -> dict:
    """The state of the last checkpoint."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*command, f"--nproc-per-node={ranks}", EXAMPLES / example, folder],
        check=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    return json.loads((checkpoints(folder)[-1] / "trainer_state.json").read_text())


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def logged(state: dict, name: str) -> list[float]:
    return [entry[name] for entry in state["log_history"] if name in entry]


def test_it_trains_and_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    whole = launch(2, tmp_path, "transformers_trainer.py")
    assert whole["epoch"] == 2.0
    for later in checkpoints(tmp_path)[1:]:
        shutil.rmtree(later)
    again = launch(1, tmp_path, "transformers_trainer.py")
    assert again["epoch"] == 2.0
    losses = logged(again, "loss")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("example", "needs"), [("vision_sft.py", "skimage"), ("trl_dpo.py", "trl")]
)
def test_two_ranks_learn(tmp_path: Path, example: str, needs: str) -> None:
    pytest.importorskip(needs)
    state = launch(2, tmp_path, example)
    losses = logged(state, "loss")
    assert state["epoch"] == 1.0
    assert losses[-1] < 0.8 * losses[0]


def test_grpo_learns_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    state = launch(2, tmp_path, "trl_grpo.py")
    rewards = logged(state, "reward")
    assert rewards[-1] > rewards[0] + 0.1
    assert all(1.0 <= each < 1.3 for each in logged(state, "imbalance"))
