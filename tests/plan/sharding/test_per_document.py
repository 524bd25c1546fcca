"""Per-document sharding balances pairs to a thousandth, with no padding, whatever the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from evenstep.plan.sharding import shard_per_document
from sharded_sequences import CONTEXT, LENGTHS, RANKS, Int64Array, pretraining


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_pairs_are_equal_to_a_thousandth_with_no_padding(ranks: int) -> None:
    shardings = [shard_per_document(lengths, ranks) for lengths in pretraining(40)]
    imbalance = [sharding.pairs.max() / sharding.pairs.mean() for sharding in shardings]
    assert max(imbalance) <= 1.002
    assert np.mean(imbalance) <= 1.001
    assert all(sharding.tokens.tolist() == [CONTEXT // ranks] * ranks for sharding in shardings)


@given(lengths=LENGTHS, ranks=RANKS)
def test_ranks_have_equal_parts_of_each_document_to_two_tokens(
    lengths: Int64Array, ranks: int
) -> None:
    sharding = shard_per_document(lengths, ranks)
    rank = np.arange(ranks).repeat(sharding.fragments)
    parts = np.zeros((len(lengths), ranks), np.int64)
    np.add.at(parts, (sharding.document, rank), sharding.end - sharding.start)
    assert np.ptp(parts, axis=1).max() <= 2


def test_where_chunks_divide_it_is_head_and_tail_of_every_document() -> None:
    sharding = shard_per_document([8, 16], 2)
    assert sharding.document.tolist() == [0, 0, 1, 1, 0, 1]
    assert sharding.start.tolist() == [0, 6, 0, 12, 2, 4]
    assert sharding.end.tolist() == [2, 8, 4, 16, 6, 12]
