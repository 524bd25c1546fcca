from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.tools.report.bins import Bins


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=50), st.integers(1, 60))
def test_every_sample_is_counted_once(lengths: list[int], bins: int) -> None:
    array = np.array(lengths)
    found = Bins.count(array, bins)
    assert 1 <= len(found) <= bins
    assert (np.diff(found.edges) > 0).all()
    assert (found.edges[0], found.edges[-1]) == (min(lengths), max(lengths) + 1)
    for index, share in enumerate(found.shares):
        inside = [n for n in lengths if found.holds(index, n)]
        assert share == pytest.approx(len(inside) / len(lengths))
