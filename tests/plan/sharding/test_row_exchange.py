"""Exchanged rows: the same tokens on every rank, and attention that is equal to a few tiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding import METHODS, shard
from evenstep.plan.sharding.row_exchange import exchange_rows


@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from(METHODS),
)
def test_the_slowest_rank_has_no_more_tiles_and_all_ranks_their_tokens(
    lengths: list[int], ranks: int, method: str
) -> None:
    before = shard(lengths, ranks, methods=(method,))
    after = exchange_rows(before)
    after.check()
    assert after.tokens.tolist() == before.tokens.tolist()
    assert after.tiles().max() <= before.tiles().max()
    assert after.method == before.method


@pytest.mark.parametrize("ranks", [3, 7, 37])
def test_ranks_of_long_documents_have_equal_attention(ranks: int) -> None:
    lengths = [127_038, 40_000, 9_000, 3_000, 2_000]
    before, after = shard(lengths, ranks), shard(lengths, ranks, even=True)
    after.check()
    worst = after.tiles().max() / after.tiles().mean()
    assert worst < 1.004
    assert worst < before.tiles().max() / before.tiles().mean()
    assert after.fragments.mean() < before.fragments.mean() + 4
