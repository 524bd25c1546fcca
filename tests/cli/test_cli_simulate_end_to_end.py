from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from evenstep.cli import main

Capture = pytest.CaptureFixture[str]
SMALL = ("--context", "8192", "--tp", "1", "--cp", "4", "--pp", "2", "--dp", "1", "--steps", "3")


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(("simulate", "end-to-end", *arguments))
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def test_a_job_on_given_lengths(capsys: Capture, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1.5, 2000).clip(1, 8192).astype(int)
    np.save(tmp_path / "lengths.npy", lengths)
    options = ("--lengths", str(tmp_path / "lengths.npy"), *SMALL)
    code, out, err = run(capsys, *options, "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert (figures["job"], figures["gpus"], figures["ranks"]) == ("7B-8K", 8, 4)
    assert figures["ranks_of_group_max"] <= 4
    assert figures["dynamic_over_plain"] == pytest.approx(
        figures["dynamic_over_wlb"] * figures["wlb_over_plain"]
    )
    code, exposed, err = run(capsys, *options, "--exposed", "--json")
    assert json.loads(exposed)["dynamic_over_plain"] != figures["dynamic_over_plain"]
    code, out, err = run(capsys, *options)
    assert f"dynamic groups over WLB-LLM: {figures['dynamic_over_wlb']:.3f}" in out


def test_what_cannot_be_predicted_is_refused(capsys: Capture) -> None:
    code, _, err = run(capsys, "--lengths", "sft-256k", "--model", "8B")
    assert code != 0
    assert "model='8B' must be one of 550M, 7B, 30B, 70B" in err
    code, _, err = run(capsys, "--lengths", "sft-256k", "--tp", "5")
    assert code != 0
    assert "32 heads, which 5 ranks cannot share" in err
