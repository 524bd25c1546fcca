"""Per-sequence sharding balances one document, and with several can leave one rank all the cost."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.plan.sharding import shard_per_sequence

CONTEXT = 131_072


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_the_cost_of_one_document_is_equal_on_all_ranks(ranks: int) -> None:
    sharding = shard_per_sequence([CONTEXT], ranks)
    assert np.ptp(sharding.pairs) == 0
    assert sharding.fragments.tolist() == [2] * (ranks - 1) + [1]


@pytest.mark.parametrize(("ranks", "times"), [(2, 2.000), (4, 3.999), (8, 7.99), (16, 15.9)])
def test_at_worst_one_rank_has_all_the_cost(ranks: int, times: float) -> None:
    # One document lies on both middle chunks, and all others are of one token.
    middle = CONTEXT // ranks
    around = np.ones((CONTEXT - middle) // 2, np.int64)
    sharding = shard_per_sequence(np.concatenate((around, [middle], around)), ranks)
    imbalance = sharding.pairs.max() / sharding.pairs.mean()
    assert sharding.pairs.argmax() == ranks - 1
    assert times - 5e-4 <= imbalance < ranks


def test_chunks_of_a_length_that_does_not_divide_differ_by_one() -> None:
    sharding = shard_per_sequence([13], 3)
    # Chunks of 3, 2, 2, 2, 2, 2 tokens.
    assert sharding.start.tolist() == [0, 11, 3, 9, 5]
    assert sharding.end.tolist() == [3, 13, 5, 11, 9]
    assert sharding.tokens.tolist() == [5, 4, 4]
