from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_line import Capture, run

from evenstep.context_parallel.latency import load_latency
from evenstep.tools.profile import timer

SMALL = ("profile", "--attention", "--quick", "--device", "cpu", "--heads", "1", "--max-length")
SMALL += ("1024", "--head-size", "8", "--seconds", "60")


@pytest.fixture(autouse=True)
def _few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much time and few repeats, so that a machine under load measures all shapes, too."""
    monkeypatch.setattr(timer, "_REPEATS", (3, 3))


def test_a_measured_file_is_a_latency(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "new" / "attention.json"
    code, out, err = run(capsys, *SMALL, "--out", str(path), "--json")
    assert code == 0, err
    assert f"written: {path}" in err
    latency = load_latency(path)
    assert json.loads(out)["latency"] == latency.as_dict()
    assert (latency.heads, latency.head_size, latency.dtype) == (1, 8, "fp32")
    assert (latency.kernel, latency.launches) == ("sdpa", "fragment")
    measured = json.loads(out)["measured"]
    assert {shape["outcome"] for shape in measured["shapes"]} == {"ok"}
    assert measured["held_out"] >= 3
    assert 0 <= measured["median_error"] <= measured["worst_error"]


def test_people_get_tables_and_a_file_in_the_folder_they_are_in(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *SMALL)
    assert code == 0, err
    assert out.startswith("attention on ")
    assert "forward: queries \\ keys" in out
    assert "backward: queries \\ keys" in out
    assert "shapes that are not in the table, the error is" in out
    assert load_latency("attention-latency.json").heads == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attention", "--layers", "3"), "--layers does not apply to --attention"),
        (("--attention", "--no-causal"), "--attention is causal"),
        (("--attention", "--device", "cpu", "--kernel", "flash"), "runs on CUDA alone"),
        (("--attention", "--seconds", "1e-9", "--device", "cpu"), "give more --seconds"),
        (("--quick",), "--quick applies to --attention only"),
        (("--head-size", "8"), "--head-size applies to --attention only"),
        (("--heads", "8"), "--layers, --hidden-size, --ffn-size, --out must be given"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, err = run(capsys, "profile", *arguments)
    assert (code, printed, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file_to_write(capsys: Capture, tmp_path: Path) -> None:
    code, _, err = run(capsys, *SMALL, "--out", str(tmp_path))
    assert (code, err) == (2, f"evenstep: --out {tmp_path} is a folder; give a file\n")
