"""torchtitan's Trainer, with FSDP, its losses and checkpoints, on evenstep's batches; and what an
EvenDataLoader hands out and refuses without it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from script_jobs import run_script, torchrun
from update_checks import of_all_ranks, whole_epochs

pytest.importorskip("torchtitan.config", reason="torchtitan is not installed")

import evenstep
from documents import Documents
from evenstep.errors import SampleError
from evenstep.integrations.torchtitan import EvenDataLoader

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[3] / "examples"
WITHOUT_END = 1000


def job(ranks: int, folder: Path, **arguments: Any) -> list[Any]:
    return run_script(HERE / "titan_job.py", ranks, folder, **arguments)


def samples(reports: list[Any]) -> list[set[int]]:
    return of_all_ranks([report["updates"] for report in reports])


def check_epochs(updates: list[set[int]], epochs: int) -> None:
    """Every sample once in each, and an epoch begins with an update."""
    whole = whole_epochs(updates)
    assert len(whole) == epochs
    assert sum(whole) == len(updates)


def check_token_mean(reports: list[Any]) -> None:
    for report in reports:
        assert max(report["errors"]) < 1e-5
        assert report["losses"] == pytest.approx(report["truth"], rel=1e-5)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 3), (1, 1)])
def test_epochs_gradients_and_losses(ranks: int, micro_batches: int, tmp_path: Path) -> None:
    reports = job(ranks, tmp_path, steps=WITHOUT_END, micro_batches=micro_batches, epochs=2)
    check_epochs(samples(reports), 2)
    check_token_mean(reports)
    assert reports[0]["values"]["padding"] == 0
    assert reports[0]["values"] == reports[-1]["values"]


def test_a_killed_job_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    whole = job(2, tmp_path, steps=WITHOUT_END, epochs=2)
    before = job(2, tmp_path, steps=WITHOUT_END, epochs=2, interval=2, die_at=4, dies=True)
    assert [r["updates"] for r in before] == [r["updates"][:4] for r in whole]
    again = job(2, tmp_path, steps=WITHOUT_END, epochs=2, interval=WITHOUT_END)
    assert [r["updates"] for r in again] == [r["updates"][2:] for r in whole]
    assert again[0]["losses"] == pytest.approx(whole[0]["losses"][2:], rel=1e-4)
    alone = job(1, tmp_path, steps=WITHOUT_END, epochs=2, interval=WITHOUT_END)
    check_epochs(samples(whole)[:2] + samples(alone), 2)
    check_token_mean(alone)


def test_ranks_of_tensor_parallelism_have_the_same_batches(tmp_path: Path) -> None:
    parallelism = {"tensor_parallel_degree": 2}
    reports = job(4, tmp_path, steps=WITHOUT_END, epochs=1, parallelism=parallelism)
    assert reports[0]["updates"] == reports[1]["updates"]
    assert reports[2]["updates"] == reports[3]["updates"]
    check_epochs(samples(reports[::2]), 1)


def test_the_example_runs_under_their_command(tmp_path: Path) -> None:
    arguments = ["--module=torchtitan_config", "--config=even_debugmodel"]
    arguments += [f"--dump_folder={tmp_path}", "--training.steps=2", "--training.seq_len=128"]
    arguments += ["--training.local_batch_size=1", "--dataloader.num_workers=1"]
    arguments += ["--parallelism.spmd_backend=partial_dtensor"]
    script = HERE / "titan_train.py"
    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    said = torchrun(1, script, *arguments, log=tmp_path, PYTHONPATH=path)
    assert re.findall(r"step: +(\d)", said) == ["1", "2"]


DOCUMENTS = Documents(30, longest=64, prompts=True)


def build(longest: int = 64, **options: Any) -> EvenDataLoader:
    config = EvenDataLoader.Config(make_dataset=lambda tokenizer, longest: DOCUMENTS, **options)
    return config.build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=longest, local_batch_size=2
    )


def test_rows_hold_as_many_tokens_as_torchtitans_own_batches() -> None:
    loader = build(epochs=1)
    rows = [inputs["input"].shape[1] for inputs, _ in loader]
    assert sum(rows) == DOCUMENTS.lengths.sum()
    assert max(rows) <= 2 * 64
    loader.close()


def test_a_sample_without_position_is_refused_by_name() -> None:
    loader = build(longest=16, epochs=1)
    with pytest.raises(SampleError, match=r"sample \d+: it has \d+ tokens.* for 16"):
        list(loader)
    loader.close()


def test_padding_of_a_row_stays_within_the_positions() -> None:
    collate = evenstep.PackCollator(pad_to_multiple_of=512)
    loader = build(epochs=1, options={"collate_fn": collate})
    for inputs, labels in loader:
        assert inputs["input"].shape == labels.shape == (1, 512)
        assert inputs["positions"].max() < 64
    loader.close()
