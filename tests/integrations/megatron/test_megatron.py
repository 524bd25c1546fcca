"""megatron-core trains on micro-batches of evenstep: its GPT, DDP, schedules and checkpoints; and
what a MicroBatchIterator refuses, in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from script_jobs import run_script, torchrun
from update_checks import of_all_ranks, whole_epochs

parallel_state = pytest.importorskip(
    "megatron.core.parallel_state", reason="megatron-core is not installed"
)

import evenstep  # noqa: E402
from documents import Documents  # noqa: E402
from evenstep.errors import CollateError, MismatchError  # noqa: E402
from evenstep.integrations.megatron import MicroBatchIterator  # noqa: E402

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1800)]
JOB = Path(__file__).parent / "megatron_job.py"
MICRO_BATCHES = 2


def job(ranks: int, folder: Path, **arguments: Any) -> list[Any]:
    return run_script(JOB, ranks, folder, **{"micro_batches": MICRO_BATCHES, **arguments})


def samples(reports: list[Any]) -> list[set[int]]:
    return of_all_ranks([[one["indices"] for one in report] for report in reports])


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return job(2, tmp_path_factory.mktemp("straight"), updates=8)


def without_loss(row: list[int]) -> bool:
    return all(token <= 0 for token in row)


def test_every_sample_comes_once_an_epoch_in_updates_of_equally_many_micro_batches(
    straight: list[Any],
) -> None:
    assert len(whole_epochs(samples(straight))) >= 2
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
    assert len(whole_epochs(samples(straight)[:4])) == 1
    (ended,) = whole_epochs(before[:4])
    assert len(whole_epochs(alone, set().union(*before[ended:4]))) >= 2


@pytest.mark.parametrize("form", ["tensor", "pipeline"])
def test_ranks_of_one_data_parallel_rank_have_the_same_micro_batches(
    form: str, tmp_path: Path
) -> None:
    reports = job(4, tmp_path, updates=4, **{form: 2})
    of_model = [reports[:2], reports[2:]] if form == "tensor" else [reports[::2], reports[1::2]]
    for one, other in of_model:
        assert [update["rows"] for update in one] == [update["rows"] for update in other]
    assert whole_epochs(samples([reports for reports, _ in of_model]))


def test_a_step_of_several_micro_batches_is_an_update(tmp_path: Path) -> None:
    reports = job(2, tmp_path, updates=6, micro_batches=3, policy="workload")
    assert whole_epochs(samples(reports))
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


DOCUMENTS = Documents(20, longest=64)
POLICY = evenstep.Even(96, packed=True)


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def config(**changes: Any) -> Any:
    return SimpleNamespace(
        **{
            "calculate_per_token_loss": True,
            "pipeline_model_parallel_size": 1,
            "variable_seq_lengths": False,
            **changes,
        }
    )


def make(changed: Any = None, **options: Any) -> Any:
    return MicroBatchIterator(
        DOCUMENTS, changed or config(), num_microbatches=2, policy=POLICY, **options
    )


def test_a_pipeline_with_one_shape_refuses_another() -> None:
    of_one_shape = config(pipeline_model_parallel_size=2)
    iterator = make(of_one_shape)
    with pytest.raises(CollateError, match="set variable_seq_lengths, or collate"):
        list(islice(iterator, 20))
    iterator.close()
    iterator = make(of_one_shape, collate_fn=evenstep.PackCollator(pad_to_multiple_of=96))
    assert {next(iterator)["tokens"].shape for _ in range(20)} == {(1, 96)}
    iterator.close()


def test_documents_reach_megatron_with_the_padding_behind_them() -> None:
    iterator = make(collate_fn=evenstep.PackCollator(pad_to_multiple_of=96))
    batch = next(iterator)
    assert "attention_mask" not in batch
    assert batch["cu_seqlens"][0, -1] == 96
    assert batch["cu_seqlens"].equal(batch["packed_seq_params"].cu_seqlens_q[None])
    assert int(batch["max_seqlen"]) == int(batch["cu_seqlens"].diff().max())
    assert iterator.values.tokens == iterator.step.global_tokens
    iterator.close()


def test_a_state_belongs_between_two_updates() -> None:
    iterator = make()
    iterator.state_dict()
    next(iterator)
    with pytest.raises(evenstep.ConfigurationError, match="1 micro-batches into an update of 2"):
        iterator.save_state()
    next(iterator)
    state = iterator.save_state()
    with pytest.raises(MismatchError, match="saved with another data loader"):
        iterator.load_state_dict({"consumed_samples": 1})
    again = make()
    again.load_state_dict(state)
    assert next(again)["tokens"].equal(next(iterator)["tokens"])
    again.close()
    iterator.close()
