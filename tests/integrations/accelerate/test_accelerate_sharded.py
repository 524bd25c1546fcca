"""Parameters on several ranks, FSDP2 and DeepSpeed under Accelerate: samples, equal steps,
gradients, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")

from script_jobs import run_script
from sharded_on_cpu import ways
from update_checks import Update, check_epoch, together

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1000)]
SCRIPT = Path(__file__).with_name("sharded_loop.py")
SAVED = 2  # updates before the checkpoint


def job(folder: Path, **arguments: Any) -> list[list[Update]]:
    return [
        [Update(u["samples"], u["steps"], gradient=torch.tensor(u["gradient"])) for u in updates]
        for updates in run_script(SCRIPT, 2, folder, **arguments)
    ]


@pytest.mark.parametrize(
    ("way", "accumulate"),
    ways(("fsdp2", 1), ("fsdp2", 3), ("own", 3), ("zero2", 3), ("zero3", 1), ("zero3", 3)),
)
def test_every_update_on_two_ranks_is_that_of_one_batch(
    tmp_path: Path, way: str, accumulate: int
) -> None:
    check_epoch(job(tmp_path, way=way, accumulate=accumulate), accumulate, rate=1.0)


@pytest.mark.parametrize("way", ways(("fsdp2",), ("zero2",), ("zero3",)))
def test_a_killed_job_goes_on_where_it_saved(tmp_path: Path, way: str) -> None:
    arguments = {"way": way, "accumulate": 1}
    whole = job(tmp_path, **arguments)
    job(tmp_path, **arguments, save=SAVED, stop=SAVED + 1, dies=True)
    again = job(tmp_path, **arguments, load=True)
    rest = [updates[SAVED:] for updates in whole]
    assert together(again) == together(rest)
    for one, other in zip(again[0], rest[0], strict=True):
        assert torch.equal(one.gradient, other.gradient)
