from __future__ import annotations

import pytest

from evenstep.plan.rng import generator


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (3, 2, 1)), ((0, 1), (1, 1)), ((-1, 1), (1, 1))],
)
def test_other_keys_give_other_numbers(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert generator(*one).permutation(50).tolist() != generator(*other).permutation(50).tolist()


def test_the_bits_behind_a_key_never_change() -> None:
    # Ranks run on different machines; NumPy promises these bits for every version.
    bits = generator(7, 2**40, -1).bit_generator.random_raw(2).tolist()
    assert bits == [510462867260471198, 4789769423851728485]
