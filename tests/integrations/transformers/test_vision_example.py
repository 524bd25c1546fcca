"""The example of supervised fine-tuning on images, as its first lines say to run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_trainer_example import launch

pytest.importorskip("skimage")
pytestmark = [pytest.mark.integrations, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "vision_sft.py"


def test_it_trains_on_two_ranks(tmp_path: Path) -> None:
    state = launch(2, tmp_path, EXAMPLE)
    assert state["epoch"] == 1.0
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
