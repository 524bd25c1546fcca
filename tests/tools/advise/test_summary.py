from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.tools.advise import LengthSample, Range, Summary, summarize
from evenstep.tools.advise.summary import return_on_investment
from evenstep.tools.simulate import sample_lengths


def length_sample_of(lengths: np.ndarray, total: int | None) -> LengthSample:
    return LengthSample(name="d", lengths=lengths, total=total, longest=None, how="")


def ranges(summary: Summary) -> dict[str, Range]:
    values = {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary)}
    return {name: value for name, value in values.items() if isinstance(value, Range)}


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 9000))
def test_figures_of_all_samples_are_exact(lengths: list[int], max_tokens: int) -> None:
    array = np.array(lengths)
    summary = summarize(length_sample_of(array, len(array)), max_tokens)
    assert summary.mean.value == pytest.approx(sum(lengths) / len(lengths))
    assert summary.median.value == pytest.approx(np.median(array))
    assert summary.cv.value == pytest.approx(array.std() / array.mean())
    assert summary.short.value == sum(4 * n < max_tokens for n in lengths) / len(lengths)
    assert (summary.shortest, summary.longest) == (min(lengths), max(lengths))
    assert all(value.low == value.value == value.high for value in ranges(summary).values())


@settings(max_examples=10)
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=40), st.integers(0, 5))
def test_ranges_hold_the_value_and_are_repeatable(lengths: list[int], seed: int) -> None:
    length_sample = length_sample_of(np.array(lengths), None)
    summary = summarize(length_sample, 1000, seed)
    assert summary == summarize(length_sample, 1000, seed)
    for value in ranges(summary).values():
        assert 0 <= value.low <= value.value <= value.high


def test_ranges_hold_the_figures_of_all_the_data_nine_times_in_ten() -> None:
    everything = sample_lengths("sharegpt4o", 50_000, 1)
    truth = ranges(summarize(length_sample_of(everything, len(everything)), 12_288))
    held = dict.fromkeys(truth, 0)
    for seed in range(20):
        drawn = np.random.default_rng(seed).choice(everything, 500, replace=False)
        found = ranges(summarize(length_sample_of(drawn, len(everything)), 12_288, seed))
        for name, value in found.items():
            held[name] += value.low <= truth[name].value <= value.high
    # Of 20 with probability 0.9, fewer than 14 come once in 400; quantiles are rougher.
    assert all(count >= 14 for count in held.values()), held


@pytest.mark.parametrize(
    ("cv", "short", "word", "says"),
    [
        (0.8, 0.0, "high", "CV 0.80"),
        (0.1, 0.21, "high", "f_s 0.21"),
        (1.2, 0.5, "high", "CV 1.20 is at least 0.8 and f_s 0.50"),
        (0.5, 0.2, "small", "CV 0.50"),
        (0.1, 0.0, "small", "CV 0.10"),
        (0.65, 0.2, "moderate", "between"),
    ],
)
def test_the_screen_is_that_of_the_paper(cv: float, short: float, word: str, says: str) -> None:
    exact = Range.exact
    summary = Summary(
        mean=exact(1.0),
        median=exact(1.0),
        p95=exact(1.0),
        p99=exact(1.0),
        cv=exact(cv),
        short=exact(short),
        short_at_twice_mean=exact(0.07),
        longest=1,
        shortest=1,
        max_tokens=4,
    )
    found, meaning = return_on_investment(summary)
    assert found == word
    assert says in meaning
    # By f_s alone, which grows with the budget, it is not to be relied on.
    assert ("0.07" in meaning) == (word == "high" and cv < 0.8)
