"""The scheduler for Megatron-LM: what its data loader and its schedule rely on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.context_parallel.frameworks.megatron_scheduler import DynamicContextScheduler
from evenstep.errors import ConfigurationError


class Ranks:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks


def check(tokens: Any, ids: Any, samples: list[tuple[int, int]], ranks: int, limit: int) -> None:
    """What `hybrid_context_parallel_forward_backward` and the exchange of samples rely on."""
    length, seen = dict(samples), []
    assert len(tokens) == len(ids)
    for tokens_of, ids_of in zip(tokens, ids):
        assert len(ids_of) == len(tokens_of) == ranks
        rank = 0
        while rank < ranks:
            own = ids_of[rank]
            assert own, "a rank without samples is refused"
            # As there, the size of a group is the number of ranks that have its sample.
            size = sum(own[0] in others for others in ids_of)
            assert size & (size - 1) == 0
            assert rank % size == 0
            assert ids_of[rank : rank + size] == [own] * size
            assert tokens_of[rank] == [length[each] for each in own]
            assert sum(tokens_of[rank]) <= limit * size
            seen += own
            rank += size
    assert sorted(seen) == sorted(length)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_every_sample_is_on_an_aligned_power_of_two_of_ranks_and_no_rank_without(
    lengths: list[int], ranks: int
) -> None:
    samples = [(100 + 7 * number, length) for number, length in enumerate(lengths)]
    limit = max(max(lengths) // ranks + 1, 40)
    found = DynamicContextScheduler(limit, Ranks(ranks)).get_groups_and_subsamples(samples, None)
    check(*found, samples, ranks, limit)


def test_what_it_cannot_schedule_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="power of two"):
        DynamicContextScheduler(100, Ranks(6))
    with pytest.raises(ConfigurationError, match="no samples"):
        DynamicContextScheduler(100, Ranks(4)).get_groups_and_subsamples([])
