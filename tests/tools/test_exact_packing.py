"""The solver: the best packing where it says so, and never worse than what was known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.exact_packing import exact_packing
from evenstep.errors import ConfigurationError

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def best_of_all(lengths: list[int], costs: list[int], bins: int, per: int, cap: int) -> int | None:
    best = None
    for placed in product(range(bins), repeat=len(lengths)):
        held, load = [0] * bins, [0] * bins
        for length, cost, b in zip(lengths, costs, placed):
            held[b] += length
            load[b] += cost
        if max(held) <= cap:
            total = sum(max(load[b : b + per]) for b in range(0, bins, per))
            best = total if best is None else min(best, total)
    return best


@settings(max_examples=25)
@given(LENGTHS, st.sampled_from([(2, 1), (3, 1), (2, 2), (1, 2)]), st.integers(12, 20))
def test_it_finds_the_best_of_all_packings(
    values: list[int], shape: tuple[int, int], cap: int
) -> None:
    micro_batches, steps = shape
    lengths = np.array(values, np.int64)
    costs = lengths * (lengths + 3)
    packing = exact_packing(
        lengths, costs, micro_batches=micro_batches, steps=steps, max_tokens=cap
    )
    bins = micro_batches * steps
    expected = best_of_all(values, costs.tolist(), bins, micro_batches, cap)
    if expected is None:
        assert packing.status == "none"
        assert packing.placed is None
        return
    assert packing.status == "optimal"
    assert packing.largest == expected
    assert packing.bound == expected
    assert packing.placed is not None
    assert np.bincount(packing.placed, weights=lengths).max() <= cap
    load = np.bincount(packing.placed, weights=costs, minlength=bins).reshape(-1, micro_batches)
    assert load.max(axis=1).sum() == packing.largest


def test_a_known_packing_that_breaks_the_cap_is_refused() -> None:
    lengths = np.array([5, 5], np.int64)
    with pytest.raises(ConfigurationError, match="at most 9 tokens"):
        exact_packing(lengths, lengths, micro_batches=2, max_tokens=9, known=np.array([0, 0]))
