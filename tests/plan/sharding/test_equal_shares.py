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


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_document_is_dealt_as_head_and_tail(ranks: int) -> None:
    length = 2 * ranks * 512
    sharding = shares(np.array([length]), ranks).sharding(np.array([length]), ranks, "hybrid")
    assert sorted(sharding.fragments.tolist()) == [1] + [2] * (ranks - 1)
    assert sharding.tokens.tolist() == [1024] * ranks
    assert np.ptp(sharding.tiles()) == 0


def test_a_document_whose_tiles_cost_more_makes_its_share_smaller() -> None:
    # Two of equal length, of which the first takes three times as long: the rank with more of the
    # first has fewer pairs.
    lengths = np.array([64, 64])
    made = equal_shares(lengths, 2, np.array([3.0, 1.0]), 1)
    sharding = made.sharding(lengths, 2, "hybrid")
    all_pairs = sharding.latency(lambda queries, keys: (2.0 * keys - queries + 1) * queries / 2)
    rank = np.arange(2).repeat(sharding.fragments)
    pairs = (sharding.start + sharding.end + 1) * (sharding.end - sharding.start) / 2
    assert all_pairs.sum() == pairs.sum()
    costs = np.bincount(rank, pairs * np.where(sharding.document == 0, 3.0, 1.0))
    assert costs.max() / costs.mean() <= 1.02
    assert abs(int(sharding.tokens[0]) - 64) <= 1
