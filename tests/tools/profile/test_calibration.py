"""A calibration of timed lengths: its fit, its file and what it says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from calibrations import LAYERS, known_calibration
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.profile import (
    Calibration,
    LengthMeasurement,
    load_calibration,
    read_calibration,
)
from evenstep.tools.profile.calibration_text import calibration_notes, calibration_text


def test_the_cost_is_that_of_all_layers() -> None:
    cost = known_calibration().cost
    assert cost.per_group == pytest.approx(LAYERS * 1.001e-4)
    assert cost.per_token == pytest.approx(LAYERS * 4e-6)
    assert cost.per_pair == pytest.approx(LAYERS * 1e-9)


def test_the_linear_term_is_the_length_at_which_both_parts_cost_the_same() -> None:
    calibration = known_calibration()
    assert calibration.linear == pytest.approx(4000)
    assert DocumentCost.of(calibration.cost) == DocumentCost(linear=4000)
    assert known_calibration(pair=0).linear is None


def test_errors_are_those_of_the_fit_at_each_length() -> None:
    calibration = known_calibration(slow=1.5)
    *measured, beyond = calibration.measurements
    errors = [calibration.error(m) for m in measured]
    assert calibration.error(beyond) is None
    for m, error in zip(measured, errors):
        assert m.attention is not None
        assert m.rest is not None
        seconds = m.attention.seconds + m.rest.seconds
        assert error == pytest.approx((calibration.fitted(m.length) - seconds) / seconds)
    assert min(filter(None, errors)) < -0.02
    assert max(filter(None, errors)) > 0.02


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    calibration = known_calibration(slow=1.1)
    path = tmp_path / "new" / "calibration.json"
    calibration.write(path)
    assert read_calibration(path) == calibration
    cost = load_calibration(path)
    assert type(cost) is FittedCost
    assert cost == calibration.cost
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_loading_says_on_what_device_it_was_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calibration.json"
    known_calibration().write(path)
    with caplog.at_level(logging.INFO, logger="evenstep"):
        load_calibration(path)
    assert f"{path}: measured on Abacus 3000, 2 threads, fp32" in caplog.messages


def test_too_few_lengths_make_no_calibration_and_the_error_says_why() -> None:
    known = known_calibration()
    skipped = LengthMeasurement(length=2048, outcome="skipped", detail="no time left")
    with pytest.raises(
        ConfigurationError, match=r"3 lengths were measured, .*; 2,048: skipped \(no time left\)"
    ):
        Calibration.of(
            [*known.measurements[:3], skipped],
            shape=known.shape,
            device=known.device,
            dtype=known.dtype,
            torch=known.torch,
        )


def test_the_text_has_a_row_for_each_length_and_the_crossing() -> None:
    text = calibration_text(known_calibration())
    assert "on Abacus 3000, 2 threads, fp32, PyTorch 2.5.0" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    # length, attention, ±, rest, ±, both, fitted, error; milliseconds of one layer
    assert rows["1,024"][1:4] == ["1.05", "0.0105", "4.2"]
    assert rows["1,024"][5:] == ["5.24", "5.24", "-0.0%"] or rows["1,024"][7] == "+0.0%"
    assert rows["8,192"][-3:] == ["out", "of", "memory"]
    assert "10 equal layers: 0.001 s per group, 4e-05 s per token, 1e-08 s per squared" in text
    assert "squared token; at least 0 s" in text
    assert "attention costs as much as the rest at 4,000 tokens: DocumentCost(linear=4000)" in text


def test_notes_say_what_weakens_the_coefficients() -> None:
    assert calibration_notes(known_calibration()) == ["8,192: out of memory (tried 2 GiB)"]
    assert "the fit is off by more than 15% at" in calibration_notes(known_calibration(slow=5))[-1]
    assert any(
        "4,096 measured" in note for note in calibration_notes(known_calibration(pair=1e-10))
    )
    assert any("too fast to be measured" in n for n in calibration_notes(known_calibration(pair=0)))
