"""The fit of a layer's times: two polynomials, each above what launches take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.profile import PartFits
from evenstep.tools.profile.calibration import fit_parts

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
    both = ((fits.attention, attention, fits.floors[0]), (fits.rest, rest, fits.floors[1]))
    for values, seconds, floor in both:
        columns = LENGTHS[:, None] ** np.arange(float(len(values))) / (attention + rest)[:, None]
        scale = columns.max(axis=0)
        share = seconds / (attention + rest)
        _, residual = optimize.nnls(columns / scale, share)  # without a floor
        found = np.maximum(floor / (attention + rest), columns @ np.array(values))
        assert np.linalg.norm(found - share) <= residual * (1 + 1e-6)


def test_attention_without_squares_is_given_none_by_rounding() -> None:
    fits = fit_parts(LENGTHS[:5], 1.01e-7 + 3e-9 * LENGTHS[:5], 1e-4 + 1e-6 * LENGTHS[:5])
    assert fits.cost(1).per_pair == 0


def test_a_rest_that_gets_faster_with_length_does_not_hide_attention() -> None:
    attention = 1e-10 * LENGTHS**2.0
    rest = 1e-6 * LENGTHS * (1 + 500 / LENGTHS**0.8)
    assert fit_parts(LENGTHS, attention, rest).cost(1).per_pair == pytest.approx(1e-10, rel=1e-6)


def test_too_few_lengths_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 lengths were measured, and a fit needs 4"):
        fit_parts([1, 2, 4], [1.0] * 3, [1.0] * 3)


# Launches


def layer_times(fits: PartFits) -> np.ndarray:
    """[lengths] seconds of a layer."""
    cost = fits.cost(1)
    above = cost.per_group + cost.per_token * LENGTHS + cost.per_pair * LENGTHS**2.0
    return np.maximum(sum(fits.floors), above)


def test_short_documents_on_the_floor_do_not_change_what_a_token_takes() -> None:
    attention = np.maximum(2e-4, 3e-8 * LENGTHS + 3e-11 * LENGTHS**2.0)
    rest = np.maximum(2e-3, 1e-4 + 7e-7 * LENGTHS)
    fits = fit_parts(LENGTHS, attention, rest)
    assert fits.floors == pytest.approx((2e-4, 2e-3))
    assert fits.attention == pytest.approx((0, 3e-8, 3e-11), rel=1e-6, abs=1e-12)
    assert fits.rest == pytest.approx((1e-4, 7e-7), rel=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 3), st.floats(1.2, 3.0))
def test_one_slow_measurement_does_not_raise_the_floor(slow: int, times: float) -> None:
    attention = np.maximum(2e-4, 3e-8 * LENGTHS + 3e-11 * LENGTHS**2.0)
    rest = np.maximum(2e-3, 7e-7 * LENGTHS)
    rest[slow] *= times
    fits = fit_parts(LENGTHS, attention, rest)
    assert fits.floors[1] == pytest.approx(2e-3, rel=0.01)
    assert fits.rest[1] == pytest.approx(7e-7, rel=0.02)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(4, 9))
def test_a_model_that_never_leaves_the_floor_still_takes_time_per_token(
    seed: int, count: int
) -> None:
    lengths = LENGTHS[:count] // 8
    rng = np.random.default_rng(seed)
    attention, rest = (t * rng.uniform(0.8, 1.2, count) for t in (2e-4, 1.9e-3))
    cost = fit_parts(lengths, attention, rest).cost(3)
    assert 0.4 < cost.per_token / (3 * 1.9e-3 / lengths[-1]) < 1.5


H100_8B = (
    np.array([0.1994, 0.2014, 0.2117, 0.2657, 0.4303, 1.239, 4.231, 15.6, 59.98]),
    np.array([1.762, 1.64, 1.819, 2.655, 4.908, 9.343, 18.65, 37.21, 73.42]),
)
H100_SMALL = (
    np.array([0.199, 0.2269, 0.2826, 0.209, 0.2626, 0.6454, 2.042, 7.326, 28.19]),
    np.array([1.899, 1.952, 2.208, 1.88, 2.042, 2.956, 5.851, 11.47, 22.78]),
)


@pytest.mark.parametrize(
    ("milliseconds", "largest", "median"), [(H100_8B, 0.07, 0.012), (H100_SMALL, 0.11, 0.025)]
)
def test_times_of_a_gpu_are_fitted_from_launches_to_long_documents(
    milliseconds: tuple[np.ndarray, np.ndarray], largest: float, median: float
) -> None:
    """Milliseconds of attention and the rest of a layer on an H100, 4,096 and 2,048 wide."""
    attention, rest = (part / 1e3 for part in milliseconds)
    found = layer_times(fit_parts(LENGTHS, attention, rest))
    errors = np.abs(found / (attention + rest) - 1)
    assert errors.max() < largest
    assert np.median(errors) < median
