"""``evenstep simulate rebalance``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from command_line import Capture, figures, run

REBALANCE = ("simulate", "rebalance")
WAY = {
    *("imbalance", "rank_imbalance", "micro_batches", "fill", "fullest", "plan_ms"),
    "time_over_evenstep",
}


@pytest.mark.parametrize(("ranks", "limit"), [(8, 1.01), (64, 1.02)])
def test_rollouts_meet_what_is_promised(capsys: Capture, ranks: int, limit: float) -> None:
    result = figures(capsys, *REBALANCE, "--ranks", str(ranks), "--steps", "2")
    assert result.keys() >= {
        *WAY,
        "micro_batches_least",
        "imbalance_least",
        "policy",
        "lengths",
        "seed",
        "cost",
    }
    assert (result["max_tokens"], result["samples"], result["packed"]) == (32_768, 32, True)
    assert 1 <= result["imbalance"] <= limit
    assert result["micro_batches"] <= result["micro_batches_least"] + 1
    for other in (result["verl"], result["plain"]):
        assert other.keys() == WAY
        assert other["imbalance"] > result["imbalance"]


def test_recorded_lengths_keep_their_order(capsys: Capture, tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.arange(1, 101))
    options = ("--lengths", str(tmp_path / "lengths.npy"), "--ranks", "4", "--padded", "--json")
    code, out, err = run(capsys, *REBALANCE, *options)
    assert code == 0, err
    result = json.loads(out)
    assert (result["samples"], result["steps"], result["max_tokens"]) == (25, 1, 200)
    assert "suffices for 1 x 100 sequences" in err


def test_the_table_has_a_row_for_each_way(capsys: Capture) -> None:
    code, out, err = run(capsys, *REBALANCE, "--ranks", "4", "--steps", "1", "--padded")
    assert code == 0, err
    for row in ("evenstep", "as verl does", "plain split"):
        assert any(line.startswith(row) for line in out.splitlines())
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "0"), "ranks=0"),
        (("--samples", "0"), "samples=0"),
        (("--max-tokens", "1000"), "over max_tokens=1,000"),
        (("--lengths", "nowhere.npy"), "there is no file nowhere.npy"),
        (("--cost", "none"), "unknown cost 'none'"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_reason(
    capsys: Capture, options: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *REBALANCE, *options)
    assert code != 0
    assert says in err
    assert not out
