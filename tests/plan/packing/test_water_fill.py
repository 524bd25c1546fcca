"""Water runs to where the surface is lowest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.water_fill import water_fill

VESSELS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=6)


@settings(max_examples=50)
@given(VESSELS, st.floats(0, 1000))
def test_what_lies_in_the_vessels_under_one_surface_is_what_was_poured(
    vessels: list[tuple[int, int]], supply: float
) -> None:
    floors = np.array([[floor for floor, _ in vessels]], np.float64)
    depths = np.array([[depth for _, depth in vessels]])
    level, poured = water_fill(floors, depths, np.array([supply]))
    assert poured[0] == pytest.approx(min(supply, depths.sum()))
    below = np.clip(level[:, None] - floors, 0, depths).sum()
    assert below == pytest.approx(poured[0], abs=1e-6)


@settings(max_examples=50)
@given(st.lists(VESSELS.filter(lambda v: len(v) == 3) | st.just([(1, 2), (3, 4), (5, 6)])))
def test_cases_do_not_touch_each_other(cases: list[list[tuple[int, int]]]) -> None:
    if not cases:
        return
    floors = np.array([[f for f, _ in case] for case in cases], np.float64)
    depths = np.array([[d for _, d in case] for case in cases])
    supply = np.arange(len(cases)) * 20.0
    levels, poured = water_fill(floors, depths, supply)
    for i in range(len(cases)):
        level, alone = water_fill(floors[i : i + 1], depths[i : i + 1], supply[i : i + 1])
        assert (level[0], alone[0]) == (levels[i], poured[i])
