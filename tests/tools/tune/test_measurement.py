from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.length_moments import LengthMoments
from evenstep.tools.tune import MeasuredSteps, StepTime, measure

NOTHING = LengthMoments.empty()
steps = st.lists(
    st.builds(
        StepTime,
        st.floats(0.001, 100),
        st.integers(1, 1000),
        st.integers(1, 1000),
        st.just(2000),
        st.just(NOTHING),
    ),
    min_size=1,
    max_size=60,
)


@given(steps)
def test_throughput_is_all_samples_over_all_seconds(given: list[StepTime]) -> None:
    found = measure(given)
    assert found.samples == sum(step.samples for step in given)
    assert found.throughput == pytest.approx(found.samples / sum(step.seconds for step in given))
    assert found.tokens_per_second * found.seconds == pytest.approx(found.tokens)
    assert found.padding == pytest.approx(1 - found.tokens / (2000 * len(given)))
    assert (found.standard_error is None) == (len(given) < 8)


def test_steady_steps_have_no_error_however_unequal_they_are() -> None:
    # Ten samples a second in each of them.
    found = measure([StepTime(n / 10, n, n, n, NOTHING) for n in range(1, 41)])
    assert found.standard_error == pytest.approx(0, abs=1e-9)
    assert found.step_variation > 0.5


@pytest.mark.parametrize("correlated", [False, True])
def test_the_standard_error_is_the_spread_of_repeated_measurements(correlated: bool) -> None:
    generator = np.random.default_rng(0)

    def steps() -> list[StepTime]:
        noise = generator.gamma(20, 1 / 20, 200)
        if correlated:  # times of ten steps in a row are alike
            noise = np.repeat(noise[::10], 10)
        samples = generator.integers(50, 150, 200)
        pairs = zip(noise, samples)
        return [StepTime(float(n) * s / 100, int(s), 1, 1, NOTHING) for n, s in pairs]

    runs = [measure(steps()) for _ in range(150)]
    spread = np.std([run.throughput for run in runs])
    estimated = np.sqrt(np.mean([run.standard_error**2 for run in runs]))  # type: ignore[operator]
    assert estimated == pytest.approx(spread, rel=0.15)


def test_composition_is_that_of_updates() -> None:
    def step(length: int, ends_update: bool) -> StepTime:
        moments = LengthMoments.of([length] * 4, [0, 4]).together()
        return StepTime(1.0, 4, 4 * length, 4 * length, moments, ends_update)

    apart = [step(length, True) for length in (10, 1000) * 10]
    pairs = [step(length, length == 1000) for length in (10, 1000) * 10]
    assert measure(apart).composition == 0
    assert measure(pairs).composition > 1


def test_steps_that_took_no_time_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 steps in 0"):
        measure([StepTime(0.0, 1, 1, 1, NOTHING)] * 2)


@given(steps, st.integers(0, 10), st.integers(1, 20))
def test_as_many_steps_are_measured_as_asked_for_after_warm_up(
    given: list[StepTime], warmup: int, wanted: int
) -> None:
    measured, complete = MeasuredSteps(warmup=warmup, steps=wanted).select(given)
    assert list(measured) == given[warmup : warmup + wanted]
    assert complete == (len(given) >= warmup + wanted)


@given(steps, st.integers(0, 10), st.floats(0.01, 200))
def test_seconds_end_with_the_first_step_that_fills_them(
    given: list[StepTime], warmup: int, seconds: float
) -> None:
    measured_steps = MeasuredSteps(warmup=warmup, seconds=seconds)
    measured, complete = measured_steps.select(given)
    assert list(measured) == given[warmup : warmup + len(measured)]
    passed = [0.0, *np.cumsum([step.seconds for step in measured])]
    assert complete == (passed[-1] >= seconds)
    assert all(p < seconds for p in passed[:-1])
    assert complete or len(measured) == max(len(given) - warmup, 0)
    done, total = measured_steps.progress(given)
    assert not complete or done >= total - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": -1}, "warmup=-1"),
        ({"steps": 0}, "steps=0"),
        ({"seconds": 0.0}, "seconds=0"),
        ({"seconds": float("nan")}, "seconds=nan"),
    ],
)
def test_measuring_nothing_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MeasuredSteps(**options)  # type: ignore[arg-type]
