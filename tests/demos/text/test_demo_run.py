"""The whole demo, on very little text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import typer

from evenstep.cli import main
from evenstep_demos.text.command import register


def _run(*arguments: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)  # with a callback, one command is still called by its name
    register(app)
    app(["demo", *arguments], standalone_mode=False)


def _text(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(0)
    words = ["def", "return", "self", "import", "lambda", "yield", "None", "True", "class"]
    rows = [
        " ".join(draw.choices(words, k=int(draw.lognormvariate(2.5, 1)) + 2)) for _ in range(99)
    ]
    pq.write_table(pa.table({"body": rows}), path)
    return path


def test_all_runs_train_on_the_same_samples_and_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, out = _text(tmp_path / "text.parquet"), tmp_path / "new" / "out"
    _run(
        *("--data", str(data), "--column", "body", "--out", str(out), "--json"),
        *("--samples", "41", "--max-tokens", "256", "--seed", "3"),
    )
    stdout, stderr = capfd.readouterr()
    result = json.loads(stdout)
    assert len(stdout.splitlines()) == 1
    assert all(f"{run} {n}: 100%" in stderr for run in ("fixed", "evenstep") for n in (1, 2, 3))
    assert str(out / "step_times.png") in stderr

    assert result["options"]["samples"] == 40
    fixed, even = result["fixed"], result["evenstep"]
    assert fixed["samples"] == even["samples"] == 3 * 40
    assert fixed["tokens"] == even["tokens"]
    assert fixed["tokens"] == pytest.approx(3 * 40 * result["lengths"]["mean"])
    assert even["padding"] < fixed["padding"]
    assert even["most_padded_tokens"] <= 256
    for run in (fixed, even):
        assert len(run["compute_seconds"]) == run["steps"]
        assert run["held_out_loss"] < result["initial_loss"]
    losses = result["held_out_losses"]
    assert all(len(set(losses[run])) == 3 for run in ("fixed", "evenstep"))
    above = np.subtract(losses["evenstep"], losses["fixed"])
    assert result["loss_difference"]["mean"] == pytest.approx(above.mean())
    assert json.loads((out / "result.json").read_text()) == result
    assert (out / "step_times.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_option_ends_the_demo_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--world-size", "1", "--out", str(tmp_path / "out")])
    assert "--world-size" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
