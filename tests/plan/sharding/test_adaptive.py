"""The sharding with the fastest slowest rank is taken; among equals that with fewest fragments."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import (
    METHODS,
    KernelLatency,
    Sharding,
    TileLatency,
    shard,
    shard_per_document,
    shard_per_sequence,
)
from sharded_sequences import LENGTHS, RANKS, Int64Array

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
    ranked = {m: (shardings[m].latency(latency).max(), len(shardings[m].document)) for m in methods}
    best = min(ranked.values())
    assert (chosen.latency(latency).max(), len(chosen.document)) == best
    first = next(m for m in methods if ranked[m] == best)
    # A sharding that hybrid adopts from another method is called by that one's name.
    assert chosen.method == first or (first == "hybrid" and same(chosen, shardings[chosen.method]))


@pytest.mark.parametrize(
    "methods", [(), ("zigzag",), "hybrid", ("hybrid", "hybrid"), ("per-sequence", "whole")]
)
def test_methods_that_are_unknown_none_or_twice_are_refused(methods: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="each once"):
        shard([10], 2, methods=methods)


def test_a_latency_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="finite"):
        shard([10, 20], 2, latency=lambda queries, keys: queries * np.nan)
