"""What steps are expected to draw is what a mixture draws; and sources are divided among loaders by
weight, with few that are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from evenstep.arrays import Int64Array
from evenstep.mixture import FeedbackSchedule, Mixer, WarmUp
from evenstep.strategy import SampleTable
from evenstep.strategy.loaders import draws_of, owners_by_weight, weights_ahead
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


# Owners


def load_of(weights: list[float], owners: list[list[int]], loaders: int) -> list[float]:
    load = [0.0] * loaders
    for weight, own in zip(weights, owners):
        for loader in own:
            load[loader] += weight / len(own)
    return load


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 40))
@example([0, 0, 0], 2)
def test_every_source_and_every_loader_has_a_part_and_few_are_shared(weights, loaders) -> None:
    owners = owners_by_weight(weights, loaders)
    assert all(len(set(own)) == len(own) >= 1 for own in owners)
    assert {loader for own in owners for loader in own} == set(range(loaders))
    assert sum(map(len, owners)) <= len(weights) + loaders
    assert owners == owners_by_weight(weights, loaders)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=30), st.integers(2, 8))
def test_no_loader_has_more_than_the_mean_and_most_of_a_source(weights, loaders) -> None:
    """As a source is given to the loader that has least, which is at most the mean of the others
    before it."""
    assume(loaders < len(weights))
    load = load_of(weights, owners_by_weight(weights, loaders), loaders)
    assert sum(load) == pytest.approx(sum(weights))
    assert max(load) <= np.mean(load) + (1 - 1 / loaders) * max(weights) + 1e-9


def test_more_loaders_than_sources_go_to_the_heaviest() -> None:
    assert [len(own) for own in owners_by_weight([8.0, 1.0, 3.0], 8)] == [5, 1, 2]
