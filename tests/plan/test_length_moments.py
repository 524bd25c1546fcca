"""Lengths are checked once; their moments; composition is 1 for what is random and 0 for what is
sorted; and random numbers are a function of their key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.length_moments import LengthMoments, composition
from evenstep.plan.rng import generator
from evenstep.plan.value_checks import check_lengths
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


def test_random_steps_have_a_composition_of_1() -> None:
    lengths = sample_lengths("mm-mix", 8_000, 1)
    draw = np.random.default_rng(0)
    found = [composition_of(np.split(draw.permutation(lengths), 160)) for _ in range(8)]
    assert np.mean(found) == pytest.approx(1, abs=0.015)


def test_steps_of_one_length_have_a_composition_of_0() -> None:
    assert composition_of([np.full(5, length) for length in (10, 20, 40)]) == 0.0


# Checks


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "lengths= holds no lengths"),
        ([[1, 2]], "shape .* must have one dimension"),
        ([1.5, 2.0], "holds float64; lengths must be integers"),
        ([5, 0, 7, -1], "2 lengths that are not at least 1, the first of them 0 at position 1"),
        ([2**31], "not below 2,147,483,648, .* remove these samples"),
    ],
)
def test_lengths_that_cannot_be_planned_by_are_refused(values, says) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_lengths(np.array(values))


# Random numbers


def test_the_bits_behind_a_key_never_change() -> None:
    # Ranks run on different machines; NumPy promises these bits for every version.
    bits = generator(7, 2**40, -1).bit_generator.random_raw(2).tolist()
    assert bits == [510462867260471198, 4789769423851728485]
