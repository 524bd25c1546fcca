from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.profile.layer_fit import fit_parts

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
