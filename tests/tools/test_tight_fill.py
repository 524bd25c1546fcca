"""Packings that leave no room are found, and those that are returned hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.tight_fill import tight_fill
from benchmarks.papers.wlb.window_packing import cut_at_windows
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.simulate import sample_lengths

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(lambda v: np.array(v, np.int64))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 5), st.integers(0, 20))
def test_every_document_is_placed_and_no_micro_batch_is_over_the_cap(
    lengths: np.ndarray, bins: int, spare: int
) -> None:
    cap = max(-(-int(lengths.sum()) // bins), 50) + spare
    placed = tight_fill(lengths, lengths**2, bins, cap)
    if placed is not None:
        assert ((placed >= 0) & (placed < bins)).all()
        assert np.bincount(placed, weights=lengths).max() <= cap


def test_more_tokens_than_there_is_room_for_are_not_placed() -> None:
    assert tight_fill(np.array([5, 5, 5]), np.array([5, 5, 5]), 2, 7) is None


def test_most_global_batches_are_packed_to_the_last_token_and_more_evenly_than_they_came() -> None:
    context, per, cost = 131_072, 4, DocumentCost()
    cut = cut_at_windows(sample_lengths("pretrain-128k", 4000, 1), context)
    lengths, better, found = cut.pieces.lengths, [], 0
    batches = (len(cut.windows) - 1) // per
    for batch in range(batches):
        first, end = cut.windows.offsets[[batch * per, (batch + 1) * per]].tolist()
        mine = lengths[first:end]
        costs = cost.of_documents(mine)
        placed = tight_fill(mine, costs, per, context)
        if placed is None:
            continue
        found += 1
        assert (np.bincount(placed, weights=mine) == context).all()
        windows = np.arange(per).repeat(cut.windows.sizes[batch * per : (batch + 1) * per])
        before, after = (np.bincount(at, weights=costs).max() for at in (windows, placed))
        better.append(after / before)
    assert found >= 0.7 * batches
    assert np.mean(better) < 0.97
