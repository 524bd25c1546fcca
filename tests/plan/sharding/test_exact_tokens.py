"""Tokens are made exactly equal by few moves, where they cost a kernel least."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding.attention_tiles import causal_tiles
from evenstep.plan.sharding.hybrid import _tiles, equal_shares, exact_tokens
from evenstep.plan.sharding.sharding import Fragments
from sharded_sequences import LENGTHS, RANKS, Int64Array, pretraining


def whole(lengths: Int64Array, owner: list[int]) -> Fragments:
    return Fragments(
        document=np.arange(len(lengths)),
        start=0 * lengths,
        end=lengths,
        owner=np.array(owner, np.int64),
    )


@given(lengths=LENGTHS, ranks=RANKS, data=st.data())
def test_any_fragments_are_made_equal_with_every_token_kept(
    lengths: Int64Array, ranks: int, data: st.DataObject
) -> None:
    owner = data.draw(
        st.lists(st.integers(0, ranks - 1), min_size=len(lengths), max_size=len(lengths))
    )
    sharding = exact_tokens(whole(lengths, owner), ranks, 128).sharding(lengths, ranks, "hybrid")
    sharding.check()


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_nearly_equal_shares_take_one_move_less_than_ranks_and_few_tiles(ranks: int) -> None:
    for lengths in pretraining(20):
        shares = equal_shares(lengths, ranks, np.ones(len(lengths)), 128)
        made = exact_tokens(shares, ranks, 128)
        assert len(made.document) <= len(shares.document) + ranks - 1
        before = causal_tiles(shares.start, shares.end).sum()
        assert before <= causal_tiles(made.start, made.end).sum() <= 1.01 * before


@given(start=st.integers(0, 500), size=st.integers(0, 500), tile=st.integers(1, 130))
def test_tiles_of_one_fragment_are_those_of_arrays(start: int, size: int, tile: int) -> None:
    expected = causal_tiles(np.array([start]), np.array([start + size]), tile)
    assert [_tiles((0, start, start + size), tile)] == expected.tolist()
