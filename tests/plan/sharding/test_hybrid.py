"""Hybrid sharding: exact tokens, few fragments, and a slowest rank near the best possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.sharding import (
    TileLatency,
    shard,
    shard_per_document,
    shard_per_sequence,
)
from evenstep.plan.sharding.attention_tiles import causal_pairs
from evenstep.plan.sharding.hybrid import shard_equally
from sharded_sequences import CONTEXT, LENGTHS, RANKS, Int64Array, pretraining


@given(lengths=LENGTHS, ranks=RANKS, launch=st.integers(0, 10_000))
def test_it_is_never_worse_by_any_measure(lengths: Int64Array, ranks: int, launch: int) -> None:
    def latency(queries: Int64Array, keys: Int64Array) -> np.ndarray:
        return launch + queries * np.sqrt(keys)

    sharding = shard(lengths, ranks, latency=latency, methods=("hybrid",))
    for other in (shard_per_sequence(lengths, ranks), shard_per_document(lengths, ranks)):
        assert sharding.latency(latency).max() <= other.latency(latency).max()


# What per-document sharding has: 1.09, 1.14 and 1.26, with 58 fragments a rank.
@pytest.mark.parametrize(
    ("ranks", "tiles", "fragments"), [(4, 1.04, 12), (8, 1.05, 8), (16, 1.07, 6)]
)
def test_the_slowest_rank_of_pretraining_sequences_computes_little_in_vain(
    ranks: int, tiles: float, fragments: float
) -> None:
    shardings = [shard(lengths, ranks, methods=("hybrid",)) for lengths in pretraining(40)]
    ideal = [
        causal_pairs(0 * sharding.lengths, sharding.lengths).sum() / ranks for sharding in shardings
    ]
    slowest = [sharding.tiles().max() * 128**2 / pairs for sharding, pairs in zip(shardings, ideal)]
    assert np.mean(slowest) <= tiles
    assert np.mean([sharding.fragments.mean() for sharding in shardings]) <= fragments
    assert all(sharding.tokens.tolist() == [CONTEXT // ranks] * ranks for sharding in shardings)


def test_cuts_are_between_tiles_of_the_size_that_is_counted() -> None:
    for lengths in pretraining(5):
        sharding = shard_equally(lengths, 8, latency=TileLatency(tile=300))
        # All except moves, and what is left behind them.
        assert np.count_nonzero(sharding.start % 300) <= 7
        assert sharding.tiles(300).max() <= 1.05 * sharding.tiles(300).mean()
