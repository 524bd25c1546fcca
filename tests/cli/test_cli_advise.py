from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

import command_line
from command_line import Capture

from evenstep.tools.advise.predict import FIGURES as STEP_FIGURES
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.yardsticks import COMPARED

FIGURES = (*STEP_FIGURES, "speedup")
SMALL = ("--world-size", "2", "--buffer-size", "64", "--seed", "1")


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return command_line.run(capsys, "advise", *arguments)


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.save(tmp_path / "lengths.npy", sample_lengths("mm-mix", 300, 1))
    return str(tmp_path / "lengths.npy")


def test_json_is_one_object_with_every_policy(capsys: Capture, data: str) -> None:
    code, out, err = run(capsys, data, "--sketch", "60", *SMALL, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert (found["samples"], found["sketch"], found["sketch_is_all"]) == (300, 60, False)
    assert list(found["predictions"]) == list(COMPARED)
    for name, one in found["predictions"].items():
        assert one["problem"] is None, name
        assert all(isinstance(one[figure], float) for figure in FIGURES)
    assert found["predictions"]["fixed-batch"]["speedup"] == 1.0
    recommended = found["recommended"]
    assert recommended["policy"] == "even"
    assert recommended["max_tokens"] >= found["longest_known"] == np.load(data).max()
    assert f"Even(max_tokens={recommended['max_tokens']})" in recommended["code"]
    assert found["predictions_leave_out"]
    assert 0 < found["lengths"]["median"] < found["lengths"]["p99"]


def test_text_is_for_people_and_packed_batches_only_for_models_that_take_them(
    capsys: Capture, data: str
) -> None:
    code, out, _ = run(capsys, data, "--all", "--packed", "--max-length", "1500", *SMALL)
    assert code == 0
    assert "Recommended: even-packed" in out
    assert "Predictions, not measurements" in out
    said = " ".join(out.split())
    assert "are longer than 1,500 tokens. Of all tokens, too_long='skip' loses" in said
    assert all(said in out for said in ("buffer_size=64", "packed=True", "PackCollator"))


def test_a_model_and_a_gpu_say_what_fits_and_how_fast(
    capsys: Capture, data: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    transformers.LlamaConfig(**sizes).save_pretrained(tmp_path)
    model = ("--model", str(tmp_path / "config.json"), "--batch-size", "4", "--accumulate", "2")
    code, out, _ = run(capsys, data, "--all", *SMALL, *model, "--gpu", "h100", "--json")
    found: dict[str, Any] = json.loads(out)
    recommended = found["recommended"]
    assert code == 0
    assert recommended["policy"] == "even-packed"
    assert recommended["max_tokens"] == recommended["max_tokens_to_try"][-1] > 8192
    mean = found["lengths"]["mean"]
    assert recommended["update_tokens"] == pytest.approx(2 * 4 * 2 * mean, abs=1)
    speeds = {name: one["tokens_per_second"] for name, one in found["predictions"].items()}
    assert speeds["even-packed"] > speeds["fixed-batch"] > 0
    code, out, _ = run(capsys, data, "--all", *SMALL, *model, "--gpu", "l40s", "--no-packed")
    assert code == 0
    assert "Recommended: even:" in out
    assert "no speed was measured" in " ".join(out.split())
    code, out, err = run(capsys, data, "--gpu", "h100")
    assert (code, out) == (2, "")
    assert "give --model" in err
