"""The whole demo, on very few rows; and rows that a collate function can learn from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer

pytest.importorskip("skimage")
pytest.importorskip("transformers", minversion="5")

from evenstep_demos.vision.collate import Collate, processor
from evenstep_demos.vision.command import register
from evenstep_demos.vision.crops import Crops

pytestmark = pytest.mark.timeout(400)  # transformers is imported in five processes


def _run(*arguments: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)  # with a callback, one command is still called by its name
    register(app)
    app(["demo-vision", *arguments], standalone_mode=False)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    _run("--help")
    assert "evenstep demo-vision --samples 1600 --json" in capsys.readouterr().out


def test_all_runs_train_on_the_same_rows_and_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    _run("--samples", "49", "--max-tokens", "1024", "--out", str(out), "--json")
    result = json.loads(capfd.readouterr().out)
    assert result["options"]["samples"] == 48
    fixed, even = result["fixed"], result["evenstep"]
    assert fixed["samples"] == even["samples"] == 3 * 48
    assert fixed["tokens"] == even["tokens"]
    assert even["padding"] < fixed["padding"]
    assert even["most_padded_tokens"] <= 1024
    assert all(run["held_out_loss"] < result["initial_loss"] for run in (fixed, even))
    assert result["loss_difference"]["low"] <= result["loss_difference"]["high"]
    assert json.loads((out / "result.json").read_text()) == result
    assert (out / "step_times.png").read_bytes().startswith(b"\x89PNG")


def test_rows_have_sizes_of_their_own_and_answers_alone_bear_loss() -> None:
    rows, collate = Crops(range(5, 45)), Collate(processor())
    batch = collate([rows[i] for i in range(8)])
    again = collate([Crops(range(6, 45))[i] for i in range(7)])
    np.testing.assert_array_equal(batch["pixel_values"][-9:], again["pixel_values"][-9:])
    assert len(batch["image_grid_thw"]) == sum(len(rows[i]["images"]) for i in range(8))
    for i, labels in enumerate(batch["labels"]):
        answer = rows[i]["messages"][1]["content"][0]["text"]
        decoded = collate.processor.tokenizer.decode(labels[labels >= 0])
        assert decoded == f"{answer}<|im_end|>\n"
    lengths = [len(collate([rows[i]])["input_ids"][0]) for i in range(len(rows))]
    assert np.std(lengths) > 0.5 * np.mean(lengths)
