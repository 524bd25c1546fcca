"""Pairs and tiles are what a count of every query and key gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.sharding import causal_tiles, check_tile

FRAGMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=5)


def met(start: int, end: int) -> np.ndarray:
    """[queries, keys] which keys each query of [start, end) meets."""
    return np.arange(end)[None, :] <= np.arange(start, end)[:, None]


@given(fragments=FRAGMENTS, tile=st.integers(1, 9))
def test_tiles_are_those_with_a_pair_in_them(fragments: list[tuple[int, int]], tile: int) -> None:
    start, size = np.array(fragments, np.int64).T
    expected = []
    for a, n in fragments:
        mask = met(a, a + n)
        expected.append(
            sum(
                bool(mask[row : row + tile, column : column + tile].any())
                for row in range(0, n, tile)
                for column in range(0, a + n, tile)
            )
        )
    assert causal_tiles(start, start + size, tile).tolist() == expected


@pytest.mark.parametrize("tile", [0, -1, 1.5, True])
def test_a_tile_that_is_not_a_number_of_tokens_is_refused(tile: object) -> None:
    with pytest.raises(ConfigurationError, match="tile"):
        check_tile(tile)  # type: ignore[arg-type]
