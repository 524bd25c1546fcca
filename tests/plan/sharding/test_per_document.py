"""Per-document sharding balances pairs to a thousandth, with no padding, whatever the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from evenstep.plan.sharding import shard_per_document
from sharded_sequences import CONTEXT, LENGTHS, RANKS, Int64Array, pretraining


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_pairs_are_equal_to_a_thousandth_with_no_padding(ranks: int) -> None:
    plans = [shard_per_document(lengths, ranks) for lengths in pretraining(40)]
    imbalance = [plan.pairs.max() / plan.pairs.mean() for plan in plans]
    assert max(imbalance) <= 1.002
    assert np.mean(imbalance) <= 1.001
    assert all(plan.tokens.tolist() == [CONTEXT // ranks] * ranks for plan in plans)


@given(lengths=LENGTHS, ranks=RANKS)
def test_a_rank_has_two_chunks_of_each_document_at_most(lengths: Int64Array, ranks: int) -> None:
    plan = shard_per_document(lengths, ranks)
    for rank in range(ranks):
        own = slice(plan.offsets[rank], plan.offsets[rank + 1])
        assert np.bincount(plan.document[own]).max(initial=0) <= 2


@given(lengths=LENGTHS, ranks=RANKS)
def test_ranks_have_equal_parts_of_each_document_to_two_tokens(
    lengths: Int64Array, ranks: int
) -> None:
    plan = shard_per_document(lengths, ranks)
    rank = np.arange(ranks).repeat(plan.fragments)
    parts = np.zeros((len(lengths), ranks), np.int64)
    np.add.at(parts, (plan.document, rank), plan.end - plan.start)
    assert np.ptp(parts, axis=1).max() <= 2


def test_where_chunks_divide_it_is_head_and_tail_of_every_document() -> None:
    plan = shard_per_document([8, 16], 2)
    assert plan.document.tolist() == [0, 0, 1, 1, 0, 1]
    assert plan.start.tolist() == [0, 6, 0, 12, 2, 4]
    assert plan.end.tolist() == [2, 8, 4, 16, 6, 12]
