"""Lengths of a whole data set: checked once, never changed, equal where the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan import Lengths


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "one for each sample"),
        ([[1, 2]], "one dimension of integers"),
        ([1.5, 2.0], "one dimension of integers"),
        ([5, 0, 7, -1], "2 lengths are not from 1 to .*the first of them 0 at position 1"),
        ([2**31], "remove these samples first"),
    ],
)
def test_lengths_that_cannot_be_planned_by_are_refused(values, says) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Lengths(np.array(values))


def test_lengths_are_equal_where_the_numbers_are_and_cannot_be_changed() -> None:
    given_ = np.array([3, 1, 2], np.int32)
    one, other = Lengths(given_), Lengths(np.array([3, 1, 2]))
    given_[0] = 9
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert one != Lengths(np.array([3, 1, 4]))
    with pytest.raises(ValueError, match="read-only"):
        one.values[0] = 1
