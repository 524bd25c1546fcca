"""megatron-core trains on micro-batches of evenstep: its GPT, DDP, schedules and checkpoints."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from script_jobs import run_script, torchrun

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1800)]
JOB = Path(__file__).parent / "megatron_job.py"
SAMPLES = set(range(60))
MICRO_BATCHES = 2


def job(ranks: int, folder: Path, **arguments: Any) -> list[Any]:
    return run_script(JOB, ranks, folder, **{"micro_batches": MICRO_BATCHES, **arguments})


def samples(reports: list[Any]) -> list[set[int]]:
    """Of every update, of all ranks together."""
    found = []
    for same in zip(*reports, strict=True):
        count = Counter(index for one in same for index in one["indices"])
        assert set(count.values()) <= {1}
        found.append(set(count))
    return found


def epochs(updates: list[set[int]], begun: set[int] = frozenset()) -> list[set[int]]:
    """The updates of every whole epoch, of which one may have `begun` before them."""
    whole, here, count = [], set(begun), 0
    for one in updates:
        assert not one & here, "a sample comes twice in an epoch"
        here |= one
        count += 1
        if here == SAMPLES:
            whole.append(count)
            here, count = set(), 0
    return whole


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return job(2, tmp_path_factory.mktemp("straight"), updates=8)


def without_loss(row: list[int]) -> bool:
    return all(token <= 0 for token in row)


def test_every_sample_comes_once_an_epoch_in_updates_of_equally_many_micro_batches(
    straight: list[Any],
) -> None:
    assert len(epochs(samples(straight))) >= 2
    assert {len(one["rows"]) for report in straight for one in report} == {MICRO_BATCHES}


def test_gradient_and_loss_of_an_update_are_the_token_mean(straight: list[Any]) -> None:
    for report in straight:
        for one in report:
            assert one["error"] < 1e-5
            assert one["loss"] == pytest.approx(one["true loss"], rel=1e-5)
    # The last update of an epoch lacks a micro-batch, and is filled.
    assert any(without_loss(row) for report in straight for one in report for row in one["rows"])


def test_a_killed_job_resumes_on_any_number_of_data_parallel_ranks(
    straight: list[Any], tmp_path: Path
) -> None:
    before = samples(job(2, tmp_path, updates=8, save_at=4, die_at=5, dies=True))
    assert before == samples(straight)[:5]
    again = job(2, tmp_path, updates=4, load=True)
    assert [[one["rows"] for one in report] for report in again] == [
        [one["rows"] for one in report[4:]] for report in straight
    ]
    alone = samples(job(1, tmp_path, updates=8, load=True))
    assert len(epochs(samples(straight)[:4])) == 1
    (ended,) = epochs(before[:4])
    assert len(epochs(alone, set().union(*before[ended:4]))) >= 2


@pytest.mark.parametrize("form", ["tensor", "pipeline"])
def test_ranks_of_one_data_parallel_rank_have_the_same_micro_batches(
    form: str, tmp_path: Path
) -> None:
    reports = job(4, tmp_path, updates=4, **{form: 2})
    of_model = [reports[:2], reports[2:]] if form == "tensor" else [reports[::2], reports[1::2]]
    for one, other in of_model:
        assert [update["rows"] for update in one] == [update["rows"] for update in other]
    assert epochs(samples([reports for reports, _ in of_model]))


def test_a_step_of_several_micro_batches_is_an_update(tmp_path: Path) -> None:
    reports = job(2, tmp_path, updates=6, micro_batches=3, policy="workload")
    assert epochs(samples(reports))
    for report in reports:
        for one in report:
            assert len(one["rows"]) == 3
            assert one["error"] < 1e-5


def test_the_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    arguments = json.dumps({"folder": str(tmp_path / "checkpoint"), "updates": 3})
    script = JOB.with_name("megatron_example.py")
    losses = [
        re.findall(
            r"^epoch 0: loss ([\d.]+)$", torchrun(ranks, script, arguments, log=tmp_path), re.M
        )
        for ranks in (2, 1)
    ]
    first, second = ([float(loss) for loss in one] for one in losses)
    assert len(first) == len(second) == 3
    assert second[0] < first[0]
