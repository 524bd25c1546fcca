"""What steps are expected to draw is what a mixture draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.arrays import Int64Array
from evenstep.mixture import FeedbackSchedule, Mixer, WarmUp
from evenstep.strategy import SampleTable
from evenstep.strategy.loaders import draws_of, weights_ahead
from evenstep.strategy.loaders.load_model import telling_rows

NAMES = ("short", "long", "never")
TOKENS = np.array([20.0, 300.0, 50.0])


class Endless:
    """Samples of each source, all of one length."""

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        at: Int64Array = np.arange(position, position + count)
        zeros = np.zeros(count, np.int64)
        lengths = {"text": np.full(count, int(TOKENS[source]))}
        return SampleTable(NAMES, zeros + source, at, zeros, at, lengths)


@pytest.mark.parametrize("by", ["samples", "tokens"])
@pytest.mark.parametrize("amount", [{"samples_per_step": 100}, {"tokens_per_step": 12_000}])
def test_a_mixture_draws_what_is_expected(by: str, amount: dict[str, Any]) -> None:
    schedule = WarmUp(start={"short": 1.0}, end={"short": 0.3, "long": 0.7}, steps=50)
    mixture = Mixer(NAMES, schedule, by=by, seed=4, **amount)
    drawn = [mixture.draw(step, Endless()).counts() for step in range(60)]
    weights = weights_ahead(schedule, NAMES, range(60))
    expected = draws_of(weights, TOKENS, by=by, **amount)
    assert expected.shape == (60, 3)
    assert not expected[:, 2].any()
    total = expected.sum(axis=0)
    assert np.abs(np.sum(drawn, axis=0) - total).max() <= 0.03 * total.sum()


def test_weights_that_follow_the_training_are_those_that_it_has() -> None:
    schedule = FeedbackSchedule(initial={"long": 1.0}, function=lambda last, signals: 1 / 0)
    assert weights_ahead(schedule, NAMES, [0, 7]).tolist() == [[0, 1, 0], [0, 1, 0]]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 80), st.sampled_from([2, 8, 32]))
def test_a_few_rows_have_the_most_that_each_source_gives(seed, times, sources, at_most) -> None:
    draws = np.random.default_rng(seed).exponential(1.0, (times, sources))
    rows = telling_rows(draws, at_most)
    assert len(rows) <= at_most
    assert (rows.max(axis=0) == draws.max(axis=0)).all()
