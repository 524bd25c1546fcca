"""Every sharding holds every token once, equally many on each rank, and can be undone; what each
way to shard is good for, and which one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.wlb.packing_run import cut_at_windows
from evenstep.arrays import Int64Array
from evenstep.plan.sharding import (
    METHODS,
    KernelLatency,
    Sharding,
    TileLatency,
    shard,
    shard_per_document,
    shard_per_sequence,
)
from evenstep.plan.sharding.hybrid import shard_equally
from evenstep.plan.sharding.sharding import causal_tiles
from evenstep.tools.simulate import sample_lengths

RANKS = st.integers(1, 17)
# Fewer tokens than ranks, documents below and above a tile, and one that is most of the sequence.
LENGTHS = st.lists(
    st.one_of(st.integers(1, 5), st.integers(1, 300), st.integers(1, 2000)),
    min_size=1,
    max_size=12,
).map(lambda values: np.array(values, np.int64))


def shard_hybrid(lengths: Int64Array, ranks: int) -> Sharding:
    return shard(lengths, ranks, methods=("hybrid",))


Make = Callable[[Int64Array, int], Sharding]
MAKES: list[Make] = [shard_per_sequence, shard_per_document, shard_hybrid, shard_equally, shard]
by_method = pytest.mark.parametrize("make", MAKES, ids=lambda make: make.__name__)


def by_rank(sharding: Sharding, values: np.ndarray) -> np.ndarray:
    """[ranks] sum over the fragments of each."""
    return np.bincount(np.arange(sharding.ranks).repeat(sharding.fragments), values)


def pairs_of(sharding: Sharding) -> np.ndarray:
    """[ranks] a tile of one token is a pair."""
    return by_rank(sharding, causal_tiles(sharding.start, sharding.end, 1))


def slowest(sharding: Sharding, latency: KernelLatency) -> float:
    return by_rank(sharding, latency(sharding.end - sharding.start, sharding.end)).max()


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
    sharding = make(lengths.astype(np.int32), ranks)
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


# Tiles of attention

FRAGMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=5)


@given(fragments=FRAGMENTS, tile=st.integers(1, 9))
def test_tiles_are_those_with_a_pair_in_them(fragments: list[tuple[int, int]], tile: int) -> None:
    start, size = np.array(fragments, np.int64).T
    expected = []
    for a, n in fragments:
        # [queries, keys] which keys each query meets
        mask = np.arange(a + n)[None, :] <= np.arange(a, a + n)[:, None]
        expected.append(
            sum(
                bool(mask[row : row + tile, column : column + tile].any())
                for row in range(0, n, tile)
                for column in range(0, a + n, tile)
            )
        )
    assert causal_tiles(start, start + size, tile).tolist() == expected


# Methods

CONTEXT = 131_072


def pretraining(count: int, seed: int = 0) -> list[Int64Array]:
    """Lengths of the documents of each sequence of `CONTEXT` tokens."""
    lengths = sample_lengths("pretrain-128k", 40 * count + 200, seed)
    pieces, number = cut_at_windows(lengths, CONTEXT)
    sequences = np.split(pieces, np.flatnonzero(np.diff(number)) + 1)[:count]
    assert all(int(lengths.sum()) == CONTEXT for lengths in sequences)
    return sequences


@given(lengths=LENGTHS, ranks=RANKS)
def test_ranks_have_equal_parts_of_each_document_to_two_tokens(
    lengths: Int64Array, ranks: int
) -> None:
    sharding = shard_per_document(lengths, ranks)
    rank = np.arange(ranks).repeat(sharding.fragments)
    parts = np.zeros((len(lengths), ranks), np.int64)
    np.add.at(parts, (sharding.document, rank), sharding.end - sharding.start)
    assert np.ptp(parts, axis=1).max() <= 2


@given(lengths=LENGTHS, ranks=RANKS, launch=st.integers(0, 10_000))
def test_it_is_never_worse_by_any_measure(lengths: Int64Array, ranks: int, launch: int) -> None:
    def latency(queries: Int64Array, keys: Int64Array) -> np.ndarray:
        return launch + queries * np.sqrt(keys)

    sharding = shard(lengths, ranks, latency=latency, methods=("hybrid",))
    for other in (shard_per_sequence(lengths, ranks), shard_per_document(lengths, ranks)):
        assert slowest(sharding, latency) <= slowest(other, latency)


# What per-document sharding has: 1.09 and 1.26, with 58 fragments a rank.
@pytest.mark.parametrize(("ranks", "tiles", "fragments"), [(4, 1.04, 12), (16, 1.07, 6)])
def test_the_slowest_rank_of_pretraining_sequences_computes_little_in_vain(
    ranks: int, tiles: float, fragments: float
) -> None:
    shardings = [shard(lengths, ranks, methods=("hybrid",)) for lengths in pretraining(20)]
    in_vain = [slowest(each, TileLatency()) * 128**2 / pairs_of(each).mean() for each in shardings]
    assert np.mean(in_vain) <= tiles
    assert np.mean([sharding.fragments.mean() for sharding in shardings]) <= fragments
    assert all(sharding.tokens.tolist() == [CONTEXT // ranks] * ranks for sharding in shardings)


ORDERS = st.sampled_from([o for n in (1, 2, 3) for o in permutations(METHODS, n)])
MEASURES = st.sampled_from([TileLatency(), TileLatency(tile=16)])


def by_every_method(lengths: Int64Array, ranks: int, latency: KernelLatency) -> dict[str, Sharding]:
    return {
        "per-sequence": shard_per_sequence(lengths, ranks),
        "per-document": shard_per_document(lengths, ranks),
        "hybrid": shard(lengths, ranks, latency=latency, methods=("hybrid",)),
    }


def same(one: Sharding, two: Sharding) -> bool:
    names = ("document", "start", "end", "offsets")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in names)


@given(lengths=LENGTHS, ranks=RANKS, latency=MEASURES, methods=ORDERS)
def test_no_method_to_choose_from_has_a_faster_slowest_rank_or_as_fast_with_fewer_fragments(
    lengths: Int64Array, ranks: int, latency: KernelLatency, methods: tuple[str, ...]
) -> None:
    chosen = shard(lengths, ranks, latency=latency, methods=methods)
    assert chosen.method in methods
    shardings = by_every_method(lengths, ranks, latency)
    ranked = {m: (slowest(s, latency), len(s.document)) for m, s in shardings.items()}
    best = min(ranked[m] for m in methods)
    assert (slowest(chosen, latency), len(chosen.document)) == best
    first = next(m for m in methods if ranked[m] == best)
    # A sharding that hybrid adopts from another method is called by that one's name.
    assert chosen.method == first or (first == "hybrid" and same(chosen, shardings[chosen.method]))
