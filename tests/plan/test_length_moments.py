"""Moments of lengths, and that composition is 1 for what is random and 0 for what is sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.length_moments import LengthMoments, composition
from evenstep.tools.simulate import sample_lengths

FIELDS = ("samples", "tokens", "mean", "second", "third")
SETS = st.lists(st.lists(st.integers(1, 100_000), min_size=1, max_size=9), min_size=1, max_size=9)


def moments_of(sets: list[list[int]] | list[np.ndarray]) -> LengthMoments:
    return LengthMoments.of(np.concatenate(sets), np.cumsum([0, *map(len, sets)]))


def composition_of(sets: list[np.ndarray]) -> float:
    moments = moments_of(sets)
    return composition(float(moments.second.sum()), moments.together(), len(sets))


@given(SETS)
def test_sets_together_have_the_moments_of_all_their_samples(sets) -> None:
    whole = moments_of([[length for one in sets for length in one]])
    together = moments_of(sets).together()
    scale = float(whole.tokens[0])
    for power, name in enumerate(FIELDS[1:], 1):
        expected = getattr(whole, name)[0]
        assert getattr(together, name) == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale**power)
    assert together.samples == whole.samples[0]


# Samples a step, and how far the mean over shuffles may be from 1.
@pytest.mark.parametrize(
    ("name", "size", "error"),
    [("ultrachat", 4, 0.1), ("mm-mix", 50, 0.015)],
)
def test_random_steps_have_a_composition_of_1(name: str, size: int, error: float) -> None:
    lengths = sample_lengths(name, 8_000, 1)
    draw = np.random.default_rng(0)
    found = [
        composition_of(np.split(draw.permutation(lengths), range(size, len(lengths), size)))
        for _ in range(8)
    ]
    assert np.mean(found) == pytest.approx(1, abs=error)


def test_steps_of_one_length_have_a_composition_of_0() -> None:
    assert composition_of([np.full(5, length) for length in (10, 20, 40)]) == 0.0


@pytest.mark.parametrize(
    "sets",
    [
        [np.array([5, 9, 700])],  # all samples in one step
        [np.array([5]), np.array([9]), np.array([700])],  # one sample in each
        [np.array([7, 7]), np.array([7])],
        [np.array([7])],
    ],
)
def test_where_no_order_could_change_anything_it_is_1(sets: list[np.ndarray]) -> None:
    assert composition_of(sets) == pytest.approx(1)
