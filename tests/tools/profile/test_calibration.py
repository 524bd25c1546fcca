"""A calibration of timed lengths: its fit, its file and what it says."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrations import LAYERS, known_calibration
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.tools.profile import (
    Calibration,
    LengthMeasurement,
    load_calibration,
    read_calibration,
)
from evenstep.tools.profile.calibration_text import calibration_notes, calibration_text
from evenstep.tools.profile.layer_fit import fit_parts


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


def test_the_range_of_the_linear_term_is_that_of_the_quartiles() -> None:
    # Quartiles are 1 % below and above the median; attention has 1e-7 s besides its squares.
    assert known_calibration().linear_range == pytest.approx(
        (4000 * 0.99 / 1.01, 4000 * 1.01 / 0.99), rel=1e-3
    )
    assert known_calibration(pair=0).linear_range == (None, None)


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
    assert (
        "attention costs as much as the rest at 4,000 tokens, 3,921 to 4,081 by the quart" in text
    )


def test_notes_say_what_weakens_the_coefficients() -> None:
    assert calibration_notes(known_calibration()) == ["8,192: out of memory (tried 2 GiB)"]
    assert "the fit is off by more than 15% at" in calibration_notes(known_calibration(slow=5))[-1]
    assert any(
        "4,096 measured" in note for note in calibration_notes(known_calibration(pair=1e-10))
    )
    assert any("too fast to be measured" in n for n in calibration_notes(known_calibration(pair=0)))


# The fit


LENGTHS = np.array([128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768])


def test_known_coefficients_are_recovered_and_scaled_by_the_layers() -> None:
    attention = 2e-5 + 3e-8 * LENGTHS + 4e-11 * LENGTHS**2
    rest = 1e-4 + 1e-6 * LENGTHS
    fits = fit_parts(LENGTHS, attention, rest)
    assert fits.attention == pytest.approx((2e-5, 3e-8, 4e-11), rel=1e-6)
    assert fits.rest == pytest.approx((1e-4, 1e-6), rel=1e-6)
    cost = fits.cost(32)
    assert cost.per_group == pytest.approx(32 * 1.2e-4)
    assert cost.per_token == pytest.approx(32 * 1.03e-6)
    assert cost.per_pair == pytest.approx(32 * 4e-11)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_noisy_times_are_fitted_as_well_as_by_another_solver(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(seed)
    shape = rng.choice([0.0, 1.0], 3) * [1e-4, 1e-6, 1e-10]
    attention = (1e-5 + LENGTHS[:, None] ** np.arange(3.0) @ shape) * rng.uniform(0.5, 2, 9)
    rest = (1e-4 + 1e-6 * LENGTHS) * rng.uniform(0.5, 2, 9)
    fits = fit_parts(LENGTHS, attention, rest)
    for values, seconds in ((fits.attention, attention), (fits.rest, rest)):
        columns = LENGTHS[:, None] ** np.arange(float(len(values))) / (attention + rest)[:, None]
        scale = columns.max(axis=0)
        share = seconds / (attention + rest)
        _, residual = optimize.nnls(columns / scale, share)
        mine = np.linalg.norm(columns @ np.array(values) - share)
        assert mine == pytest.approx(residual, rel=1e-6, abs=1e-9)


def test_attention_without_squares_is_given_none_by_rounding() -> None:
    fits = fit_parts(LENGTHS[:5], 1.01e-7 + 3e-9 * LENGTHS[:5], 1e-4 + 1e-6 * LENGTHS[:5])
    assert fits.cost(1).per_pair == 0


def test_a_rest_that_gets_faster_with_length_does_not_hide_attention() -> None:
    attention = 1e-10 * LENGTHS**2.0
    rest = 1e-6 * LENGTHS * (1 + 500 / LENGTHS**0.8)
    assert fit_parts(LENGTHS, attention, rest).cost(1).per_pair == pytest.approx(1e-10, rel=1e-6)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([1, 2, 4], "3 lengths were measured, and a fit needs 4"), ([1, 2, 2, 4], "different")],
)
def test_too_few_lengths_are_refused(lengths: list[int], message: str) -> None:
    times = [1.0] * len(lengths)
    with pytest.raises(ConfigurationError, match=message):
        fit_parts(lengths, times, times)
