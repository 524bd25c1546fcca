"""Shares are equal in tokens and in work, with two cuts for every rank but one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding.equal_shares import equal_shares
from evenstep.plan.sharding.fragments import Fragments
from sharded_sequences import LENGTHS, RANKS, Int64Array, pretraining


def shares(lengths: Int64Array, ranks: int, tile: int = 128) -> Fragments:
    return equal_shares(lengths, ranks, np.ones(len(lengths)), tile)


@given(lengths=LENGTHS, ranks=RANKS, tile=st.sampled_from([1, 7, 128]))
def test_every_cut_is_between_tiles_and_there_are_two_for_each_rank_but_one(
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
def test_of_pretraining_sequences_tokens_are_equal_to_tiles_and_work_to_percents(
    ranks: int,
) -> None:
    for lengths in pretraining(20):
        made = shares(lengths, ranks)
        plan = made.sharding(lengths, ranks, "hybrid")
        assert np.ptp(plan.tokens) <= 3 * 128
        # Nothing of a kernel's work is added by the cuts.
        rows = -(-lengths // 128)
        assert plan.tiles().sum() == (rows * (rows + 1) // 2).sum()
        assert plan.tiles().max() <= (1 + 0.005 * ranks) * plan.tiles().mean()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_document_is_dealt_as_head_and_tail(ranks: int) -> None:
    length = 2 * ranks * 512
    plan = shares(np.array([length]), ranks).sharding(np.array([length]), ranks, "hybrid")
    assert sorted(plan.fragments.tolist()) == [1] + [2] * (ranks - 1)
    assert plan.tokens.tolist() == [1024] * ranks
    assert np.ptp(plan.tiles()) == 0


def test_a_document_whose_tiles_are_worth_more_makes_its_share_smaller() -> None:
    # Two alike, of which the first takes three times as long: the rank that has more of it has
    # fewer pairs.
    lengths = np.array([64, 64])
    made = equal_shares(lengths, 2, np.array([3.0, 1.0]), 1)
    plan = made.sharding(lengths, 2, "hybrid")
    work = plan.latency(lambda queries, keys: (2.0 * keys - queries + 1) * queries / 2)
    rank = np.arange(2).repeat(plan.fragments)
    pairs = (plan.start + plan.end + 1) * (plan.end - plan.start) / 2
    assert work.sum() == pairs.sum()
    worth = np.bincount(rank, pairs * np.where(plan.document == 0, 3.0, 1.0))
    assert worth.max() / worth.mean() <= 1.02
    assert abs(int(plan.tokens[0]) - 64) <= 1
