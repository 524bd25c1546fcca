"""Hybrid sharding: exact tokens, few fragments, and a slowest rank near the best there could be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding import (
    TileLatency,
    shard_hybrid,
    shard_per_document,
    shard_per_sequence,
)
from evenstep.plan.sharding.attention_tiles import causal_pairs
from evenstep.plan.sharding.hybrid import shard_equally
from sharded_sequences import CONTEXT, LENGTHS, RANKS, Int64Array, pretraining


@given(lengths=LENGTHS, ranks=RANKS, tile=st.sampled_from([1, 16, 128]))
def test_it_is_never_worse_than_the_better_of_the_two_others(
    lengths: Int64Array, ranks: int, tile: int
) -> None:
    plan = shard_hybrid(lengths, ranks, latency=TileLatency(tile=tile))
    others = [shard_per_sequence(lengths, ranks), shard_per_document(lengths, ranks)]
    assert plan.tiles(tile).max() <= min(other.tiles(tile).max() for other in others)
    assert plan.method == "hybrid"


@given(lengths=LENGTHS, ranks=RANKS, launch=st.integers(0, 10_000))
def test_it_is_never_worse_by_whatever_measure(
    lengths: Int64Array, ranks: int, launch: int
) -> None:
    def latency(queries: Int64Array, keys: Int64Array) -> np.ndarray:
        return launch + queries * np.sqrt(keys)

    plan = shard_hybrid(lengths, ranks, latency=latency)
    for other in (shard_per_sequence(lengths, ranks), shard_per_document(lengths, ranks)):
        assert plan.latency(latency).max() <= other.latency(latency).max()


# What per-document sharding has: 1.09, 1.14 and 1.26, with 58 fragments a rank.
@pytest.mark.parametrize(
    ("ranks", "tiles", "fragments"), [(4, 1.04, 12), (8, 1.05, 8), (16, 1.07, 6)]
)
def test_the_slowest_rank_of_pretraining_sequences_computes_little_for_nothing(
    ranks: int, tiles: float, fragments: float
) -> None:
    plans = [shard_hybrid(lengths, ranks) for lengths in pretraining(40)]
    ideal = [causal_pairs(0 * plan.lengths, plan.lengths).sum() / ranks for plan in plans]
    slowest = [plan.tiles().max() * 128**2 / pairs for plan, pairs in zip(plans, ideal)]
    assert np.mean(slowest) <= tiles
    assert np.mean([plan.fragments.mean() for plan in plans]) <= fragments
    assert all(plan.tokens.tolist() == [CONTEXT // ranks] * ranks for plan in plans)


def test_most_documents_stay_whole() -> None:
    for lengths in pretraining(20):
        plan = shard_equally(lengths, 8)
        # Two cuts and a gift for each rank but one.
        assert len(plan.document) <= len(lengths) + 3 * 7


def test_cuts_are_between_tiles_of_the_size_that_is_counted() -> None:
    for lengths in pretraining(5):
        plan = shard_equally(lengths, 8, latency=TileLatency(tile=300))
        # All but gifts, and what is left behind them.
        assert np.count_nonzero(plan.start % 300) <= 7
        assert plan.tiles(300).max() <= 1.05 * plan.tiles(300).mean()
