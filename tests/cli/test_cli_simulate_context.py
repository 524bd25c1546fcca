"""``evenstep simulate`` of context parallelism and dynamic groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from command_line import Capture, figures, run

from evenstep.context_parallel.latency_default import default_latency

SHARDING = ("simulate", "context-parallel")
DYNAMIC = ("simulate", "dynamic-context-parallel")

WAYS = ("per_sequence", "per_document", "hybrid", "adaptive")
SHARDING_KEYS = {
    *(f"pair_imbalance_{way}" for way in WAYS[:3]),
    *(f"tile_imbalance_{way}{end}" for way in (*WAYS, "oracle") for end in ("", "_max")),
    *(f"fragments_per_rank_{way}" for way in WAYS),
    *(f"chosen_{way}" for way in WAYS[:3]),
    *("padding", "plan_ms", "tokens_per_rank_min", "tokens_per_rank_max"),
    *("policy", "lengths", "seed", "context", "cp", "sequences", "tile", "methods", "latency"),
}
SUMMARY = {
    *("imbalance", "imbalance_worst", "imbalance_worst_bound"),
    *("ranks_per_document_mean", "ranks_per_document_max"),
    *("communication_share", "tokens_per_rank_mean", "tokens_per_rank_max", "micro_batches"),
    "step_time_over_bound",
}


def test_pretraining_sequences_over_eight_ranks_meet_what_is_promised(capsys: Capture) -> None:
    options = ("--lengths", "pretrain-128k", "--context", "131072", "--cp", "8")
    result = figures(capsys, *SHARDING, *options, "--sequences", "40")
    assert result.keys() >= SHARDING_KEYS
    assert result["pair_imbalance_per_document"] <= 1.001
    assert result["pair_imbalance_per_document_max"] <= 1.002
    assert result["pair_imbalance_per_sequence"] > 1.7
    assert result["tile_imbalance_per_sequence"] > 1.7
    assert 1.05 < result["tile_imbalance_per_document"] < 1.25
    assert result["tile_imbalance_adaptive"] <= 1.06
    assert result["tile_imbalance_adaptive"] <= 1.01 * result["tile_imbalance_oracle"]
    assert result["fragments_per_rank_hybrid"] < result["fragments_per_rank_per_document"] / 4
    assert result["padding"] == 0
    assert result["tokens_per_rank_min"] == result["tokens_per_rank_max"] == 16_384
    assert sum(result[f"chosen_{way}"] for way in WAYS[:3]) == result["sequences"] == 40


def test_a_measured_latency_decides(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    default_latency().save(path)
    options = ("--lengths", "pretrain-128k", "--context", "32768", "--sequences", "6", "--cp", "8")
    tiles = figures(capsys, *SHARDING, *options)
    seconds = figures(capsys, *SHARDING, *options, "--latency", str(path))
    assert seconds["latency"] == str(path)
    assert seconds["latency_over_best_adaptive"] == 1
    # What short fragments lose counts too, not only their tiles.
    assert seconds["latency_over_best_per_document"] > tiles["latency_over_best_per_document"]
    assert seconds["tile_imbalance_per_document"] == tiles["tile_imbalance_per_document"]


def test_a_file_that_fills_fewer_sequences_says_so(capsys: Capture, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.full(50, 1000))
    options = ("--lengths", str(tmp_path / "lengths.npy"), "--context", "8192")
    code, out, err = run(capsys, *SHARDING, *options, "--json")
    assert code == 0
    assert json.loads(out)["sequences"] == 6
    assert "6 sequences of 8,192 tokens, not 120" in err


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


@pytest.mark.parametrize(
    ("command", "options", "rows"),
    [
        (
            SHARDING,
            ("--context", "8192", "--sequences", "3"),
            ("per-sequence", "per-document", "hybrid", "adaptive", "oracle"),
        ),
        (
            DYNAMIC,
            ("--ranks", "8", "--tokens-per-rank", "32768", "--steps", "1", "--micro-batches", "1"),
            ("dynamic", "by length alone", "groups of 8"),
        ),
    ],
)
def test_the_table_has_a_row_for_each_way(
    capsys: Capture, command: tuple[str, ...], options: tuple[str, ...], rows: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, *command, "--lengths", "pretrain-128k", *options)
    assert code == 0, err
    for row in rows:
        assert any(line.startswith(row) for line in out.splitlines())
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_picture_is_drawn(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "deep" / "ranks.png"
    small = ("--ranks", "8", "--tokens-per-rank", "32768", "--steps", "1", "--micro-batches", "1")
    code, _, err = run(capsys, *DYNAMIC, "--lengths", "pretrain-128k", *small, "--plot", str(path))
    assert code == 0, err
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert str(path) in err


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        (SHARDING, ("--cp", "0"), "ranks=0"),
        (SHARDING, ("--sequences", "0"), "sequences=0"),
        (SHARDING, ("--context", "0"), "context=0"),
        (SHARDING, ("--world-size", "8"), "No such option: --world-size"),
        (SHARDING, ("--samples", "8"), "No such option: --samples"),
        (SHARDING, ("--latency", "nowhere.json"), "nowhere.json"),
        (DYNAMIC, ("--ranks", "0"), "ranks=0"),
        (DYNAMIC, ("--tokens-per-rank", "0"), "tokens_per_rank=0"),
        (DYNAMIC, ("--steps", "0"), "steps=0"),
        (DYNAMIC, ("--micro-batches", "0"), "micro_batches=0"),
        (DYNAMIC, ("--ranks", "6", "--powers-of-two"), "power of two"),
        (DYNAMIC, ("--context", "8"), "No such option: --context"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_reason(
    capsys: Capture, command: tuple[str, ...], options: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *command, "--lengths", "pretrain-128k", *options)
    assert code != 0
    assert says in err
    assert not out
