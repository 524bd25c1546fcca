from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from evenstep.context_parallel.kernels.layout import VarlenArguments, varlen_arguments
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document
from shardings import shardings


def met_by_the_kernel(arguments: VarlenArguments, tokens: int, total: int) -> np.ndarray:
    """[queries of the rank, tokens of the sequence] how often a query meets each key."""
    met = np.zeros((tokens, total), np.int64)
    q, k = arguments.cu_seqlens_q.tolist(), arguments.cu_seqlens_k.tolist()
    for fragment in range(len(q) - 1):
        queries, keys = range(q[fragment], q[fragment + 1]), range(k[fragment], k[fragment + 1])
        hidden = len(keys) - len(queries)  # keys that the first query meets besides its own
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                if j <= i + hidden:
                    met[query, arguments.keys[key]] += 1
    return met


@given(shardings())
def test_a_kernel_lets_each_token_meet_what_precedes_it_in_its_document_once(sharding):
    total = int(sharding.begins[-1])
    document = np.repeat(np.arange(len(sharding.lengths)), sharding.lengths)
    position = np.arange(total)
    mask = (document[:, None] == document) & (position[:, None] >= position)
    for rank in range(sharding.ranks):
        own = sharding.indices(rank)
        met = met_by_the_kernel(varlen_arguments(sharding, rank), len(own), total)
        assert np.array_equal(met, mask[own].astype(np.int64))


@given(shardings())
def test_boundaries_are_what_kernels_take(sharding):
    for rank in range(sharding.ranks):
        arguments = varlen_arguments(sharding, rank)
        for bounds, longest in (
            (arguments.cu_seqlens_q, arguments.max_seqlen_q),
            (arguments.cu_seqlens_k, arguments.max_seqlen_k),
        ):
            assert bounds.dtype == np.int32
            assert bounds[0] == 0
            assert longest == np.diff(bounds).max(initial=0)
        assert arguments.cu_seqlens_q[-1] == sharding.tokens[rank]
        assert arguments.keys.dtype == np.int64
        assert len(arguments.keys) == arguments.cu_seqlens_k[-1]


@given(shardings())
def test_keys_can_be_taken_from_gathered_shards_as_they_come(sharding):
    sequence = np.random.default_rng(0).permutation(int(sharding.begins[-1]))
    gathered = sequence[sharding.permutation]
    for rank in range(sharding.ranks):
        arguments = varlen_arguments(sharding, rank)
        assert np.array_equal(gathered[arguments.gathered(sharding)], sequence[arguments.keys])


def test_what_cannot_be_attended_to_is_refused():
    sharding = shard_per_document([5], 2)
    with pytest.raises(ConfigurationError, match="rank=2 must be from 0 to 1"):
        varlen_arguments(sharding, 2)
    huge = Sharding(
        lengths=np.array([2**31]),
        document=np.array([0]),
        start=np.array([0]),
        end=np.array([2**31]),
        offsets=np.array([0, 1]),
        method="any",
    )
    with pytest.raises(ConfigurationError, match=r"2,147,483,648 keys .* over the 2,147,483,647"):
        varlen_arguments(huge, 0)
