from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

import command_line
from command_line import Capture

# What an issue or a script may rely on.
KEYS = {
    "imbalance",
    "imbalance_time_weighted",
    "makespan_ratio",
    "makespan_ratio_given_order",
    "token_delay_mean",
    "token_delay_max",
    "tokens_per_step_cv",
    "plan_ms",
    "documents_in",
    "documents_out",
    "documents_waiting",
    "documents_cut",
}


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return command_line.run(capsys, "demo-packing", *arguments)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    lengths = np.exp(np.random.default_rng(0).normal(6, 1.2, 500)).astype(int).clip(8, 8000)
    folder = tmp_path / "tree"
    folder.mkdir()
    for number, length in enumerate(lengths.tolist()):
        (folder / f"{number}.txt").write_text(f"{number:07} {'x' * (length - 8)}")
    return folder


def test_a_source_tree_gives_a_table_a_picture_and_figures(
    tree: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    code, printed, notes = run(
        capsys, "--data", str(tree), "--glob", "*.txt", "--context", "2048", "--out", str(out)
    )
    assert code == 0, notes
    for words in ("original", "WLB", "steady", "imbalance", "1F1B", "documents cut", "split the"):
        assert words in printed
    assert ": 500 documents, 0 left out as blank, unreadable or copies of others; 500 of" in notes
    assert (out / "micro_batches.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((out / "result.json").read_text())
    assert figures["documents"]["packed"] == 500


def test_json_is_one_object_with_every_packer(tree: Path, tmp_path: Path, capsys: Capture) -> None:
    options = ["--glob", "*.txt", "--micro-batches", "2", "--out", str(tmp_path / "out"), "--json"]
    code, printed, notes = run(capsys, "--data", str(tree), *options)
    assert code == 0, notes
    figures = json.loads(printed)
    assert list(figures["packers"]) == ["original", "WLB", "steady"]
    assert figures["context_chosen"] is True
    for packer in figures["packers"].values():
        assert packer.keys() >= KEYS
        assert (packer["documents_out"], packer["documents_waiting"]) == (packer["documents_in"], 0)
        assert packer["iterations"] >= 100


def test_too_little_text_is_one_line_with_the_remedy(
    tree: Path, tmp_path: Path, capsys: Capture
) -> None:
    options = ["--glob", "1.txt", "--out", str(tmp_path / "out")]
    code, printed, notes = run(capsys, "--data", str(tree), *options)
    assert (code, printed) == (2, "")
    assert "smaller context" in notes


def test_help_has_an_example(capsys: Capture) -> None:
    code, printed, _ = run(capsys, "--help")
    assert code == 0
    assert "evenstep demo-packing --data" in printed
