from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.tune import Candidate, MeasuredSteps, Measurement, TuneResult, choose, ranking
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
