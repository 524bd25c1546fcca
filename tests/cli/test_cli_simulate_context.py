"""``evenstep simulate dynamic-context-parallel``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from command_line import Capture, figures, run

DYNAMIC = ("simulate", "dynamic-context-parallel")

SUMMARY = {
    *("imbalance", "imbalance_worst", "imbalance_worst_bound"),
    *("ranks_per_document_mean", "ranks_per_document_max"),
    *("communication_share", "tokens_per_rank_mean", "tokens_per_rank_max", "micro_batches"),
    "step_time_over_bound",
}


def test_pretraining_documents_on_64_ranks_meet_what_is_promised(capsys: Capture) -> None:
    options = ("--lengths", "pretrain-128k", "--ranks", "64", "--tokens-per-rank", "16384")
    result = figures(capsys, *DYNAMIC, *options, "--steps", "2")
    assert result.keys() >= {*SUMMARY, "plan_ms", "fixed", "by_length", "policy", "seed"}
    assert 1 <= result["imbalance"] <= 1.02
    assert 1 <= result["step_time_over_bound"] <= 1.03
    assert result["tokens_per_rank_max"] <= 16_384
    assert result["ranks_per_document_mean"] < 8
    # A document of 128K fits on 8 ranks, not on 4.
    assert set(result["fixed"]) == {"8", "16", "32", "64"}
    for other in (result["by_length"], *result["fixed"].values()):
        assert other.keys() == SUMMARY
        assert other["tokens_per_rank_max"] <= 16_384
        assert other["step_time_over_bound"] > 1.2 * result["step_time_over_bound"]
    assert result["fixed"]["64"]["communication_share"] > 0.5
    assert result["speedup_over_best_fixed"] > 1.2
    assert result["speedup_over_by_length"] > 1.2


def test_documents_of_a_file_that_fit_nowhere_are_split(capsys: Capture, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.array([5000] + [100] * 60))
    options = ("--lengths", str(tmp_path / "lengths.npy"), "--ranks", "4")
    few = ("--tokens-per-rank", "1000", "--steps", "1", "--powers-of-two")
    result = figures(capsys, *DYNAMIC, *options, *few)
    assert result["longest"] == 2500
    assert result["powers_of_two"] is True


SMALL = ("--ranks", "8", "--tokens-per-rank", "32768", "--steps", "1", "--micro-batches", "1")


def test_the_table_has_a_row_for_each_way(capsys: Capture) -> None:
    code, out, err = run(capsys, *DYNAMIC, "--lengths", "pretrain-128k", *SMALL)
    assert code == 0, err
    for row in ("dynamic", "by length alone", "groups of 8"):
        assert any(line.startswith(row) for line in out.splitlines())
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "0"), "ranks=0"),
        (("--tokens-per-rank", "0"), "tokens_per_rank=0"),
        (("--steps", "0"), "steps=0"),
        (("--micro-batches", "0"), "micro_batches=0"),
        (("--ranks", "6", "--powers-of-two"), "power of two"),
        (("--context", "8"), "No such option: --context"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_reason(
    capsys: Capture, options: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *DYNAMIC, "--lengths", "pretrain-128k", *options)
    assert code != 0
    assert says in err
    assert not out
