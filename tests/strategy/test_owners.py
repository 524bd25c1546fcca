"""Sources are divided among loaders by weight, with few that are shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from evenstep.strategy.loaders import owners_by_weight


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


def test_sources_of_one_weight_are_shared_by_nobody_where_they_divide() -> None:
    assert all(len(own) == 1 for own in owners_by_weight([1.0] * 120, 8))
