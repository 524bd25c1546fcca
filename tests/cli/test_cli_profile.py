from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_line import Capture, run

from evenstep.cli.shared_options import parse_cost
from evenstep.tools.profile import load_calibration, timer

SMALL = ("--layers", "3", "--hidden-size", "64", "--heads", "4", "--ffn-size", "96")
QUICK = ("--device", "cpu", "--max-length", "256", "--seconds")


@pytest.fixture(autouse=True)
def _few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much time and few repeats, so that a machine under load measures all lengths, too."""
    monkeypatch.setattr(timer, "_REPEATS", (3, 3))


def test_a_calibration_is_written_and_is_a_cost_of_other_commands(
    capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "calibration.json"
    arguments = ("profile", *SMALL, "--kv-heads", "2", *QUICK, "60", "--out", str(path), "--json")
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert json.loads(out) == json.loads(path.read_text())
    assert f"--cost calibration:{path}" in err
    content = json.loads(out)
    assert (content["shape"]["layers"], content["shape"]["kv_heads"]) == (3, 2)
    assert (content["device"]["kind"], content["dtype"]) == ("cpu", "fp32")
    assert all(part > 0 for each in content["measurements"] for part in each["seconds"])

    cost = f"calibration:{path}"
    assert asdict(parse_cost(cost)) == asdict(load_calibration(path)) == content["coefficients"]
    capsys.readouterr()
    code, out, err = run(
        capsys,
        *("simulate", "even", "--lengths", "ultrachat", "--world-size", "2", "--samples", "100"),
        *("--cost", cost, "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["cost"] == cost


def test_too_little_time_writes_nothing_and_says_what_to_do(
    capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "calibration.json"
    code, out, err = run(capsys, "profile", *SMALL, *QUICK, "1e-9", "--out", str(path))
    assert (code, out) == (2, "")
    assert "1 lengths were measured, and a fit needs 4; give more --seconds" in err
    assert not path.exists()
