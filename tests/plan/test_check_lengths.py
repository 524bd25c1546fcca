"""Lengths that are planned by as a whole are checked once, and not changed afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_lengths


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


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
def test_lengths_are_a_copy_in_64_bits(kind) -> None:
    given = np.array([3, 1, 2], kind)
    checked = check_lengths(given)
    given[0] = 9
    assert checked.dtype == np.int64
    assert checked.tolist() == [3, 1, 2]
