from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.tune import grid_upward
from evenstep.tools.tune.grid import check_grid


def test_the_grid_has_powers_of_two_and_what_lies_halfway() -> None:
    assert grid_upward(900, 20_000) == [2048, 3072, 4096, 6144, 8192, 12288, 16384, 20_000]
    assert grid_upward(1024, 4096) == [2048, 3072, 4096]


@given(st.floats(0.5, 1e5), st.integers(1, 10**6))
def test_the_grid_rises_from_twice_the_mean_length_to_its_end_in_steps_of_at_most_a_half(
    mean: float, up_to: int
) -> None:
    if up_to < 2 * mean:
        with pytest.raises(ConfigurationError, match="less than twice the mean length"):
            grid_upward(mean, up_to)
        return
    grid = grid_upward(mean, up_to)
    assert grid == sorted(set(grid))
    assert grid[-1] == up_to
    assert 2 * mean <= grid[0] < max(2 * mean * 1.5, 2 * mean + 1) + 1
    assert all(large <= 1.5 * small or large - small <= 1 for small, large in pairwise(grid))


@pytest.mark.parametrize(("grid", "message"), [([], "empty"), ([4, 0], "max_tokens=0")])
def test_a_grid_that_cannot_be_run_is_refused(grid: list[int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_grid(grid)
