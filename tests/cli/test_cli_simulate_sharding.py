from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

from evenstep.cli import main
from evenstep.context_parallel.latency_default import default_latency

Capture = pytest.CaptureFixture[str]

WAYS = ("per_sequence", "per_document", "hybrid", "adaptive")
KEYS = {
    *(f"pair_imbalance_{way}" for way in WAYS[:3]),
    *(f"tile_imbalance_{way}{end}" for way in (*WAYS, "oracle") for end in ("", "_max")),
    *(f"fragments_per_rank_{way}" for way in WAYS),
    *(f"chosen_{way}" for way in WAYS[:3]),
    *("padding", "plan_ms", "tokens_per_rank_min", "tokens_per_rank_max"),
    *("policy", "lengths", "seed", "context", "cp", "sequences", "tile", "latency"),
}


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(("simulate", "context-parallel", *arguments))
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def simulate(capsys: Capture, *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def test_pretraining_sequences_over_eight_ranks_meet_what_is_promised(capsys: Capture) -> None:
    result = simulate(
        capsys,
        *("--lengths", "pretrain-128k", "--context", "131072", "--cp", "8", "--sequences", "40"),
    )
    assert result.keys() >= KEYS
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


def test_the_seed_decides_the_figures(capsys: Capture) -> None:
    options = ("--lengths", "pretrain-128k", "--context", "16384", "--sequences", "5", "--cp", "4")
    one, again, other = (simulate(capsys, *options, "--seed", seed) for seed in "112")
    times = ("plan_ms", "plan_ms_median")
    assert all(one[name] == again[name] for name in one if name not in times)
    assert one["tile_imbalance_adaptive"] != other["tile_imbalance_adaptive"]


def test_a_calibration_decides(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    default_latency().save(path)
    options = ("--lengths", "pretrain-128k", "--context", "32768", "--sequences", "6", "--cp", "8")
    tiles, seconds = simulate(capsys, *options), simulate(capsys, *options, "--latency", str(path))
    assert seconds["latency"] == str(path)
    assert seconds["latency_over_best_adaptive"] == 1
    # What short fragments lose counts too, not only their tiles.
    assert seconds["latency_over_best_per_document"] > tiles["latency_over_best_per_document"]
    assert seconds["tile_imbalance_per_document"] == tiles["tile_imbalance_per_document"]


def test_a_file_that_fills_fewer_sequences_says_so(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.full(50, 1000))
    code, out, err = run(capsys, "--lengths", str(path), "--context", "8192", "--json")
    assert code == 0
    assert json.loads(out)["sequences"] == 6
    assert "6 sequences of 8,192 tokens, not 120" in err


def test_the_table_has_every_way_and_the_oracle(capsys: Capture) -> None:
    code, out, _ = run(
        capsys, "--lengths", "pretrain-128k", "--context", "8192", "--sequences", "3"
    )
    assert code == 0
    for way in ("per-sequence", "per-document", "hybrid", "adaptive", "oracle"):
        assert any(line.startswith(way) for line in out.splitlines())
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--cp", "0"), "ranks=0"),
        (("--sequences", "0"), "sequences=0"),
        (("--context", "0"), "context=0"),
        (("--world-size", "8"), "No such option: --world-size"),
        (("--samples", "8"), "No such option: --samples"),
        (("--latency", "nowhere.json"), "nowhere.json"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_reason(
    capsys: Capture, options: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, "--lengths", "pretrain-128k", *options)
    assert code != 0
    assert says in err
    assert not out
