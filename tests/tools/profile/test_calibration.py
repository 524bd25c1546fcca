"""A calibration of timed lengths: its fit and its file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrations import LAYERS, known_calibration
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.profile import load_calibration
from evenstep.tools.profile.calibration import fit_parts

LENGTHS = np.array([2048, 4096, 8192, 16384, 32768])


def test_the_cost_is_that_of_all_layers() -> None:
    calibration = known_calibration()
    cost = calibration.cost
    assert cost.per_group == pytest.approx(LAYERS * 1.001e-4)
    assert cost.per_token == pytest.approx(LAYERS * 4e-6)
    assert cost.per_pair == pytest.approx(LAYERS * 1e-9)
    assert calibration.linear == pytest.approx(4000)
    assert DocumentCost.of(cost) == DocumentCost(linear=4000)
    assert known_calibration(pair=0).linear is None


def test_a_file_gives_back_the_cost_and_says_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calibration = known_calibration(slow=1.1)
    path = tmp_path / "new" / "calibration.json"
    calibration.write(path)
    with caplog.at_level(logging.INFO, logger="evenstep"):
        assert load_calibration(path) == calibration.cost
    assert f"{path}: measured on Abacus 3000, 2 threads, fp32" in caplog.messages
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "fp16"}, "damaged: it is not what was written; recreate it .*FittedCost"),
        ({"version": 2}, "version 2, and this evenstep reads version 1; recreate it"),
        ({"format": "scales"}, "is not an evenstep calibration; recreate it"),
        ("{", r"calibration\.json is damaged: it is not JSON"),
        (None, r"cannot read .*calibration\.json"),
    ],
)
def test_a_file_that_was_changed_or_is_not_there_is_refused(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "calibration.json"
    if isinstance(change, str):
        path.write_text(change)
    elif change:
        path.write_text(json.dumps({**known_calibration().as_dict(), **change}))
    with pytest.raises(ConfigurationError, match=message):
        load_calibration(path)


# The fit


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_noisy_times_are_fitted_as_well_as_by_another_solver(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(seed)
    shape = rng.choice([0.0, 1.0], 3) * [1e-4, 1e-6, 1e-10]
    attention = (1e-5 + LENGTHS[:, None] ** np.arange(3.0) @ shape) * rng.uniform(0.5, 2, 5)
    rest = (1e-4 + 1e-6 * LENGTHS) * rng.uniform(0.5, 2, 5)
    cost = fit_parts(LENGTHS, attention, rest)
    whole, unit = attention + rest, LENGTHS / LENGTHS[-1]
    terms = [
        optimize.nnls(np.stack(columns, axis=1) / whole[:, None], seconds / whole)[0]
        for columns, seconds in (
            ([unit**0, unit, unit**2], attention),
            ([1 + unit, unit], rest),
        )
    ]
    expected = (terms[0][0] + terms[1][0], terms[0][1] + sum(terms[1]), terms[0][2])
    found = (cost.per_group, cost.per_token * LENGTHS[-1], cost.per_pair * LENGTHS[-1] ** 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5 * whole.max())


def test_a_rest_that_gets_faster_with_length_does_not_hide_attention() -> None:
    attention = 1e-10 * LENGTHS**2.0
    rest = 1e-6 * LENGTHS * (1 + 500 / LENGTHS**0.8)
    assert fit_parts(LENGTHS, attention, rest).per_pair == pytest.approx(1e-10, rel=1e-6)
