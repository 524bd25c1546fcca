"""Four trainers on Ray get the same while one process after another is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import small_cluster

pytest.importorskip("ray", reason="ray is not installed")

from ray_chaos import run


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


def test_trainers_get_the_same_though_one_process_after_another_is_killed(tmp_path: Path) -> None:
    kinds = ("registry", "loader", "standby", "planner", "constructor", "trainer")
    events = iter([(kind, "killed", 2.0) for kind in kinds])
    chaos = run(tmp_path, prefetch=2, standbys=1, steps=40, events=events)
    assert len(chaos.happened) == len(kinds)
    assert chaos.promoted == 1
