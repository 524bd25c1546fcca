from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from evenstep.strategy.mixture.record import runs_of

groups = st.lists(st.sets(st.integers(0, 30), min_size=1).map(sorted), max_size=6)


@given(groups)
@example([[3], [4, 5], [1]])
def test_runs_name_every_number_once_and_are_as_long_as_can_be(given_groups: list[list[int]]):
    positions = np.array([p for group in given_groups for p in group], np.int64)
    counts = np.array([len(group) for group in given_groups], np.int64)
    found = runs_of(positions, counts)
    assert [[p for run in runs for p in range(*run)] for runs in found] == given_groups
    for runs in found:
        assert all(end < begin for (_, end), (begin, _) in pairwise(runs))
