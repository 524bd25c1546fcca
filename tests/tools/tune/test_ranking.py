"""Candidates of a search: what was measured of them, and which is chosen."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.length_moments import LengthMoments
from evenstep.tools.tune import (
    Candidate,
    MeasuredSteps,
    Measurement,
    StepTime,
    TuneResult,
    choose,
    grid_upward,
    measure,
    ranking,
)
from evenstep.tools.tune.grid import check_grid
from evenstep.tools.tune.ranking import near_fastest, undecided


def candidate(
    max_tokens: int,
    throughput: float,
    *,
    error: float | None = 0.0,
    variation: float = 0.0,
    composition: float = 1.0,
) -> Candidate:
    measurement = Measurement(
        throughput=throughput,
        standard_error=None if error is None else error * throughput,
        tokens_per_second=1.0,
        padding=0.0,
        composition=composition,
        steps=100,
        samples=100,
        tokens=100,
        seconds=100 / throughput,
        step_seconds=1 / throughput,
        step_variation=variation,
    )
    return Candidate(max_tokens=max_tokens, outcome="ok", measurement=measurement)


def died(max_tokens: int, outcome: str = "out of memory") -> Candidate:
    return Candidate(max_tokens=max_tokens, outcome=outcome)


def throughput(candidate: Candidate) -> float:
    assert candidate.measurement is not None
    return candidate.measurement.throughput


candidates = st.lists(
    st.one_of(
        st.builds(died, st.integers(1, 9), st.sampled_from(["failed", "out of memory", "hung"])),
        st.builds(
            candidate,
            st.integers(1, 9),
            st.one_of(st.floats(0.01, 1e4), st.floats(97, 100)),
            error=st.one_of(st.none(), st.floats(0, 0.2)),
            variation=st.floats(0, 2),
        ),
    ),
    max_size=8,
)
bands = st.sampled_from([0.0, 0.02, 0.1, 0.5])


@given(candidates, bands)
def test_the_smallest_value_within_the_band_of_the_fastest_is_chosen(
    given: list[Candidate], band: float
) -> None:
    measured = [c for c in given if c.ok]
    chosen = choose(given, band)
    if not measured:
        assert chosen is None
        return
    assert chosen is not None
    fastest = max(map(throughput, measured))
    assert throughput(chosen) >= (1 - band) * fastest
    for other in measured:
        if other.max_tokens < chosen.max_tokens:
            assert throughput(other) < (1 - band) * fastest


@given(candidates, bands)
def test_the_ranking_has_each_eligible_candidate_once_and_begins_with_the_choice(
    given: list[Candidate], band: float
) -> None:
    ranked = ranking(given, band)
    assert sorted(map(id, ranked)) == sorted(id(c) for c in given if c.ok)
    assert next(iter(ranked), None) is choose(given, band)
    for index in range(len(ranked)):
        assert choose(ranked[index:], band) is ranked[index]


def test_of_equal_values_the_steadier_is_chosen_and_then_the_faster() -> None:
    shaky, steady = candidate(8, 100, variation=0.5), candidate(8, 99, variation=0.1)
    assert choose([shaky, steady]) is steady
    faster = candidate(8, 100, variation=0.1)
    assert choose([shaky, steady, faster]) is faster
    # Steadiness does not outweigh the value.
    assert choose([candidate(4, 99, variation=0.9), steady]).max_tokens == 4  # type: ignore[union-attr]


def test_the_published_sweeps_are_decided_for_the_begin_of_their_plateaus() -> None:
    # ODB, Table 2: samples per second; 32,768 failed.
    values = (2048, 4096, 8192, 12288, 14336, 16384)
    sweeps = {
        "ultrachat": (8.48, 9.23, 9.44, 10.21, 10.08, 9.90),
        "llava": (20.25, 22.66, 24.17, 24.53, 24.44, 24.88),
        "sharegpt4o": (5.48, 5.74, 5.96, 6.11, 6.17, 5.86),
    }
    for name, rates in sweeps.items():
        swept = [*map(candidate, values, rates), died(32768, "failed")]
        assert next(c.max_tokens for c in near_fastest(swept)) == 12288, name


def test_the_fall_back_after_running_out_of_memory_is_smaller_than_the_choice() -> None:
    swept = (candidate(4, 50), candidate(8, 80), candidate(16, 81), candidate(32, 100), died(64))
    result = TuneResult(candidates=swept, band=0.02, measured_steps=MeasuredSteps())
    assert result.max_tokens == 32
    assert result.fall_back == 8  # near-fastest among 4, 8 and 16
    assert result.ranking == [32, 8, 16, 4]
    smallest = TuneResult(
        candidates=(candidate(4, 10), died(8)), band=0.02, measured_steps=MeasuredSteps()
    )
    assert smallest.fall_back is None


def test_noise_that_may_have_decided_is_noted_with_how_long_to_measure() -> None:
    def noted(error: float | None) -> list[Candidate]:
        swept = [candidate(4, 97, error=error), candidate(8, 99, error=error), candidate(16, 100)]
        chosen = choose(swept)
        assert chosen is not None
        assert chosen.max_tokens == 8
        return undecided(swept, chosen)[0]

    assert noted(0.0001) == []
    # 4 lies one hundredth below the band, and 8 one above its edge.
    assert [c.max_tokens for c in noted(0.01)] == [4, 16]
    assert [c.max_tokens for c in noted(None)] == [4, 16]
    swept = [candidate(4, 97, error=0.01), candidate(8, 100, error=0.0)]
    open_, longer = undecided(swept, swept[1])
    assert (open_, longer) == ([swept[0]], pytest.approx((2 * 0.97 * 0.01 / 0.01) ** 2))
    result = TuneResult(candidates=tuple(swept), band=0.02, measured_steps=MeasuredSteps())
    assert any("noise may have decided against 4" in note for note in result.notes)


def test_a_choice_of_lower_composition_is_never_silent() -> None:
    def notes(*compositions: float) -> list[str]:
        swept = [
            candidate(4 * 2**index, 100 - index, composition=one)
            for index, one in enumerate(compositions)
        ]
        result = TuneResult(
            candidates=(*swept, died(64)), band=0.02, measured_steps=MeasuredSteps()
        )
        assert result.max_tokens == 4
        return [note for note in result.notes if "composition" in note]

    (note,) = notes(0.5, 0.7, 0.52)
    assert "4 has a lower composition (0.50; 1 is random batches) than 8 (0.70)," in note
    assert notes(0.9, 0.92, 0.7) == []


@pytest.mark.parametrize("band", [-0.1, 1.0, math.nan])
def test_a_band_that_is_no_fraction_is_refused(band: float) -> None:
    with pytest.raises(ConfigurationError, match="band="):
        choose([candidate(4, 10)], band)


# The grid


def test_the_grid_has_powers_of_two_and_what_lies_halfway() -> None:
    assert grid_upward(900, 20_000) == [2048, 3072, 4096, 6144, 8192, 12288, 16384, 20_000]
    assert grid_upward(1024, 4096) == [2048, 3072, 4096]


@given(st.floats(0.5, 1e5), st.integers(1, 10**6))
def test_the_grid_rises_from_twice_the_mean_length_to_its_end_in_steps_of_at_most_a_half(
    mean: float, up_to: int
) -> None:
    if up_to < 2 * mean:
        with pytest.raises(ConfigurationError, match="less than twice the mean length"):
            grid_upward(mean, up_to)
        return
    grid = grid_upward(mean, up_to)
    assert grid == sorted(set(grid))
    assert grid[-1] == up_to
    assert 2 * mean <= grid[0] < max(2 * mean * 1.5, 2 * mean + 1) + 1
    assert all(large <= 1.5 * small or large - small <= 1 for small, large in pairwise(grid))


@pytest.mark.parametrize(("grid", "message"), [([], "empty"), ([4, 0], "max_tokens=0")])
def test_a_grid_that_cannot_be_run_is_refused(grid: list[int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_grid(grid)


# Measurement


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
