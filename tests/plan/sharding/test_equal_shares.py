"""Shares are equal in tokens and in cost, with two cuts for every rank except one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding.hybrid import equal_shares
from evenstep.plan.sharding.sharding import Fragments
from sharded_sequences import LENGTHS, RANKS, Int64Array, pretraining


def shares(lengths: Int64Array, ranks: int, tile: int = 128) -> Fragments:
    return equal_shares(lengths, ranks, np.ones(len(lengths)), tile)


@given(lengths=LENGTHS, ranks=RANKS, tile=st.sampled_from([1, 7, 128]))
def test_every_cut_is_between_tiles_and_there_are_two_for_each_rank_except_one(
    lengths: Int64Array, ranks: int, tile: int
) -> None:
    made = shares(lengths, ranks, tile)
    assert (made.start % tile == 0).all()
    assert len(made.document) <= len(lengths) + 2 * (ranks - 1)
    covered = [range(a, b) for a, b in zip(made.start.tolist(), made.end.tolist())]
    assert sorted((int(d), t) for d, own in zip(made.document, covered) for t in own) == [
        (document, token) for document, length in enumerate(lengths) for token in range(length)
    ]
    assert ((made.owner >= 0) & (made.owner < ranks)).all()


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_pretraining_sequences_are_equal_to_tiles_in_tokens_and_to_percents_in_cost(
    ranks: int,
) -> None:
    for lengths in pretraining(20):
        made = shares(lengths, ranks)
        sharding = made.sharding(lengths, ranks, "hybrid")
        assert np.ptp(sharding.tokens) <= 3 * 128
        # The cuts add nothing to what a kernel computes.
        rows = -(-lengths // 128)
        assert sharding.tiles().sum() == (rows * (rows + 1) // 2).sum()
        assert sharding.tiles().max() <= (1 + 0.005 * ranks) * sharding.tiles().mean()
