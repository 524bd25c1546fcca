from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

from evenstep.cli import main

Capture = pytest.CaptureFixture[str]

SUMMARY = {
    *("imbalance", "imbalance_worst", "imbalance_worst_bound"),
    *("ranks_per_document_mean", "ranks_per_document_max"),
    *("communication_share", "tokens_per_rank_mean", "tokens_per_rank_max", "micro_batches"),
    "step_time_over_bound",
}


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(("simulate", "dynamic-context-parallel", *arguments))
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def simulate(capsys: Capture, *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def test_pretraining_documents_on_64_ranks_meet_what_is_promised(capsys: Capture) -> None:
    result = simulate(
        capsys,
        *("--lengths", "pretrain-128k", "--ranks", "64", "--tokens-per-rank", "16384"),
        *("--steps", "2"),
    )
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


def test_the_seed_decides_the_figures(capsys: Capture) -> None:
    options = ("--lengths", "ultrachat", "--ranks", "8", "--tokens-per-rank", "4096")
    few = ("--micro-batches", "2", "--steps", "2")
    one, again, other = (simulate(capsys, *options, *few, "--seed", seed) for seed in "112")
    times = ("plan_ms", "plan_ms_max")
    assert all(one[name] == again[name] for name in one if name not in times)
    assert one["tokens_per_rank_mean"] != other["tokens_per_rank_mean"]


def test_documents_of_a_file_that_fit_nowhere_are_split(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([5000] + [100] * 60))
    result = simulate(
        capsys,
        *("--lengths", str(path), "--ranks", "4", "--tokens-per-rank", "1000", "--steps", "1"),
        "--powers-of-two",
    )
    assert result["longest"] == 2500
    assert result["powers_of_two"] is True


def test_the_picture_and_the_table_are_made(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "deep" / "ranks.png"
    code, out, err = run(
        capsys,
        *("--lengths", "pretrain-128k", "--ranks", "8", "--tokens-per-rank", "32768"),
        *("--steps", "1", "--micro-batches", "1", "--plot", str(path)),
    )
    assert code == 0, err
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert str(path) in err
    for name in ("dynamic", "by length alone", "groups of 8"):
        assert any(line.startswith(name) for line in out.splitlines())
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
    code, out, err = run(capsys, "--lengths", "pretrain-128k", *options)
    assert code != 0
    assert says in err
    assert not out
