"""Two trainers on Ray get the same while one process after another is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from ray_chaos import run

pytestmark = pytest.mark.usefixtures("ray_of_file")


def test_trainers_get_the_same_though_one_process_after_another_is_killed(tmp_path: Path) -> None:
    kinds = ("registry", "loader", "standby", "planner", "constructor", "trainer")
    chaos = run(
        tmp_path,
        prefetch=2,
        standbys=1,
        steps=40,
        step_seconds=0.2,
        mesh={"DP": 2},
        events=iter([(kind, "killed", 0.5) for kind in kinds]),
    )
    assert len(chaos.happened) == len(kinds)
    assert chaos.promoted == 1
