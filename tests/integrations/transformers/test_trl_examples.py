"""The examples of post-training, as their first lines say to run them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_trainer_example import EXAMPLE, launch

pytest.importorskip("trl")
pytestmark = [pytest.mark.integrations, pytest.mark.timeout(400)]


def test_grpo_learns_on_two_ranks(tmp_path: Path) -> None:
    log = launch(2, tmp_path, EXAMPLE.with_name("trl_grpo.py"))["log_history"]
    rewards = [entry["reward"] for entry in log if "reward" in entry]
    assert rewards[-1] > rewards[0] + 0.1
    assert all(1.0 <= entry["imbalance"] < 1.3 for entry in log if "imbalance" in entry)


def test_dpo_learns_on_two_ranks(tmp_path: Path) -> None:
    state = launch(2, tmp_path, EXAMPLE.with_name("trl_dpo.py"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert state["epoch"] == 1.0
    assert losses[-1] < 0.8 * losses[0]
