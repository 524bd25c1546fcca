"""Every sharding holds every token once, equally many on each rank, and can be undone."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.sharding import (
    Sharding,
    TileLatency,
    shard,
    shard_per_document,
    shard_per_sequence,
)
from evenstep.plan.sharding.hybrid import shard_equally
from sharded_sequences import LENGTHS, RANKS, Int64Array


def shard_hybrid(lengths: Int64Array, ranks: int) -> Sharding:
    return shard(lengths, ranks, methods=("hybrid",))


Make = Callable[[Int64Array, int], Sharding]
MAKES: list[Make] = [shard_per_sequence, shard_per_document, shard_hybrid, shard_equally, shard]
by_method = pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)


def tokens_of(sharding: Sharding, rank: int) -> list[tuple[int, int]]:
    """(document, token) in the rank's order."""
    at = range(sharding.offsets[rank], sharding.offsets[rank + 1])
    return [
        (int(sharding.document[i]), t)
        for i in at
        for t in range(sharding.start[i], sharding.end[i])
    ]


@by_method
@given(lengths=LENGTHS, ranks=RANKS)
def test_every_token_is_on_one_rank_once_in_order_and_can_be_put_back(
    make: Make, lengths: Int64Array, ranks: int
) -> None:
    sharding = make(lengths, ranks)
    sharding.check()
    by_rank = [tokens_of(sharding, rank) for rank in range(ranks)]
    assert sorted(token for own in by_rank for token in own) == [
        (document, token) for document, length in enumerate(lengths) for token in range(length)
    ]
    sizes = [len(own) for own in by_rank]
    assert sharding.ranks == ranks
    assert sharding.tokens.tolist() == sizes
    assert max(sizes) - min(sizes) <= 1
    assert (sharding.end > sharding.start).all()
    for name in ("lengths", "document", "start", "end", "offsets"):
        assert getattr(sharding, name).dtype == np.int64
    sequence = np.arange(int(lengths.sum())) + 7
    assert sequence[sharding.permutation][sharding.restore].tolist() == sequence.tolist()
    for rank, tokens in enumerate(by_rank):
        own = slice(sharding.offsets[rank], sharding.offsets[rank + 1])
        first = sharding.begins[sharding.document[own]] + sharding.start[own]
        last = sharding.begins[sharding.document[own]] + sharding.end[own]
        assert (first[1:] >= last[:-1]).all()  # in order, and no two could be one
        same = sharding.document[own][1:] == sharding.document[own][:-1]
        assert (first[1:][same] > last[:-1][same]).all()
        expected = [int(sharding.begins[document]) + token for document, token in tokens]
        assert sharding.indices(rank).tolist() == expected


@by_method
@given(lengths=LENGTHS, ranks=RANKS, tile=st.sampled_from([1, 16, 128]))
def test_pairs_and_tiles_and_latency_add_up_over_fragments(
    make: Make, lengths: Int64Array, ranks: int, tile: int
) -> None:
    sharding = make(lengths, ranks)
    assert sharding.pairs.sum() == sum(n * (n + 1) // 2 for n in lengths.tolist())
    for rank in range(ranks):
        assert sharding.pairs[rank] == sum(token + 1 for _, token in tokens_of(sharding, rank))
    assert (sharding.tiles(tile) * tile * tile >= sharding.pairs).all()
    assert sharding.tiles(1).tolist() == sharding.pairs.tolist()
    assert sharding.latency(TileLatency(tile=tile)).tolist() == sharding.tiles(tile).tolist()
    seconds = sharding.latency(lambda queries, keys: 0.5 * queries + keys)
    at = np.arange(ranks).repeat(sharding.fragments)
    queries = sharding.end - sharding.start
    for rank in range(ranks):
        own = at == rank
        assert seconds[rank] == 0.5 * queries[own].sum() + sharding.end[own].sum()


@by_method
def test_a_sharding_is_the_same_every_time(make: Make) -> None:
    lengths = np.random.Generator(np.random.PCG64(5)).integers(1, 9000, 30)
    one, two = make(lengths, 8), make(lengths.astype(np.int32), 8)
    for name in ("lengths", "document", "start", "end", "offsets", "method"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


@by_method
@pytest.mark.parametrize(
    ("lengths", "ranks", "says"),
    [
        ([], 2, "at least one document"),
        ([[3]], 2, "shape"),
        ([3.0], 2, "float64"),
        ([3, 0], 2, "document 1 of the sequence has 0 tokens"),
        ([3], 0, "ranks=0"),
    ],
)
def test_what_is_not_a_sequence_is_refused(
    make: Make, lengths: list[float], ranks: int, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make(np.array(lengths), ranks)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    sharding = shard_per_sequence([8], 2)
    for rank in (-1, 2):
        with pytest.raises(ConfigurationError, match=f"rank={rank}"):
            sharding.indices(rank)


def test_the_check_finds_lost_and_doubled_tokens_empty_fragments_and_uneven_ranks() -> None:
    sharding = shard_per_document([40, 10], 2)
    sharding.check()
    for change, says in (
        ({"start": sharding.start + (sharding.start == 0)}, "every token once"),
        ({"end": sharding.end + (sharding.end == sharding.end.max())}, "every token once"),
        ({"end": sharding.start}, "empty"),
        ({"offsets": np.array([0, 1, len(sharding.document)])}, "not differ by more than one"),
    ):
        with pytest.raises(InvariantError, match=says):
            dataclasses.replace(sharding, **change).check()


def test_a_copy_is_as_small_as_the_fragments() -> None:
    sharding = shard_per_document(np.array([70_000, 61_072]), 4)
    positions = sharding.permutation
    data = pickle.dumps(sharding)
    assert len(data) < 5_000 < positions.nbytes
    assert np.array_equal(pickle.loads(data).permutation, positions)
