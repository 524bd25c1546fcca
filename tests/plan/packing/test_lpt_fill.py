"""Each document to the micro-batch with least cost that has room."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.lpt_fill import lpt_fill

LENGTHS = st.lists(st.integers(1, 50), max_size=40).map(lambda v: np.array(v, np.int64))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 120), st.randoms())
def test_it_is_the_plain_rule_in_whatever_order(lengths, bins, cap, random) -> None:
    costs = lengths * (lengths + 7)
    order = list(range(len(lengths)))
    random.shuffle(order)
    order = order[: random.randint(0, len(order))]
    expected, held, load = [-1] * len(lengths), [0] * bins, [0] * bins
    for position in order:
        open_bins = [b for b in range(bins) if held[b] + lengths[position] <= cap]
        if open_bins:
            chosen = min(open_bins, key=lambda b: (load[b], b))
            expected[position] = chosen
            held[chosen] += int(lengths[position])
            load[chosen] += int(costs[position])
    placed = lpt_fill(lengths, costs, np.array(order, np.int64), bins, cap)
    assert placed.tolist() == expected
