from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.partition.best_fit import best_fit_decreasing


@st.composite
def inputs(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Lengths and a capacity that holds each."""
    # Count, range and capacity decide what matters, so they are drawn; lengths come from a seed.
    count, longest = draw(st.integers(0, 150)), draw(st.sampled_from([1, 6, 40, 500]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = rng.integers(1, longest, count, endpoint=True)
    return lengths, int(lengths.max(initial=1)) + draw(st.integers(0, 3 * longest))


def documents(count: int, longest: int) -> np.ndarray:
    """Most are short, some fill the whole context."""
    lengths = np.exp(np.random.default_rng(0).normal(np.log(1024), 1.4, count))
    return lengths.astype(np.int64).clip(16, longest)


def obvious(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Best-fit decreasing as one would say it, looking at every group for every sample."""
    groups: list[list[int]] = []
    free: list[int] = []
    since: list[int] = []  # the sample that brought the group to its free space
    for turn, sample in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        fitting = [g for g in range(len(groups)) if free[g] >= lengths[sample]]
        if fitting:
            chosen = min(fitting, key=lambda g: (free[g], -since[g]))
        else:
            chosen = len(groups)
            groups.append([])
            free.append(capacity)
            since.append(0)
        groups[chosen].append(sample)
        free[chosen] -= lengths[sample]
        since[chosen] = turn
    return groups


@given(inputs())
def test_each_sample_goes_where_least_space_is_left_and_ties_to_the_latest(
    world: tuple[np.ndarray, int],
) -> None:
    groups = best_fit_decreasing(*world)
    assert [groups.group(g).tolist() for g in range(len(groups))] == obvious(*world)


@pytest.mark.parametrize("longest", [131_072, 8192])
@pytest.mark.parametrize("count", [256, 10_000, 100_000])
def test_documents_fill_as_few_groups_as_can_hold_them(count: int, longest: int) -> None:
    lengths = documents(count, longest)
    at_least = max(-(-lengths.sum() // longest), (lengths * 2 > longest).sum())
    assert len(best_fit_decreasing(lengths, longest)) == at_least


def test_a_sample_over_the_capacity_is_refused_with_its_place_length_and_limit() -> None:
    with pytest.raises(ConfigurationError, match="sample 1 has 2,000 tokens, over the capacity"):
        best_fit_decreasing(np.array([5, 2000, 7]), 1999)
