"""What holds for every policy that deals an epoch out from lengths known in advance."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dealt_epochs import LENGTHS, SEEDS, WORLDS, deal, few, listed
from evenstep.plan import Policy, SequencePacking
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.policies import (
    BucketedMaxTokens,
    LengthGrouped,
    MaxTokens,
    Sorted,
    shares,
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    lengths, size, tokens = draw(LENGTHS), draw(st.integers(1, 9)), draw(st.integers(1, 3000))
    kind = draw(st.sampled_from([Sorted, LengthGrouped, MaxTokens, BucketedMaxTokens, None]))
    if kind is Sorted:
        return Sorted(size, lengths=lengths, ascending=draw(st.booleans()))
    if kind is LengthGrouped:
        return LengthGrouped(size, lengths=lengths, megabatch=draw(st.none() | st.integers(1, 60)))
    if kind is MaxTokens:
        return MaxTokens(tokens, lengths=lengths)
    if kind is BucketedMaxTokens:
        return BucketedMaxTokens(tokens, lengths=lengths, bucket_size=draw(st.integers(1, 200)))
    return SequencePacking(max(tokens, int(lengths.max())), lengths=lengths)


@few
@given(policies(), WORLDS, SEEDS, st.integers(0, 100))
def test_ranks_get_equally_many_groups_and_only_what_wraps_around_comes_twice(
    policy: Policy, world_size: int, seed: int, epoch: int
) -> None:
    assert policy.lengths is not None
    dealt = deal(policy, world_size, seed, epoch)
    assert len(dealt) == world_size
    assert len({len(share) for share in dealt}) == 1
    for share in dealt:
        assert share.sizes.min() >= 1
        assert share.sizes.max() <= policy.largest_group  # type: ignore[attr-defined]
        assert len(np.unique(share.members)) == len(share.members)
    assert [listed(share) for share in deal(policy, world_size, seed, epoch)] == [
        listed(share) for share in dealt
    ]
    times = Counter(int(i) for share in dealt for i in share.members)
    assert sorted(times) == list(range(len(policy.lengths)))
    if isinstance(policy, LengthGrouped):  # samples wrap around
        assert sum(times.values()) - len(policy.lengths) == -len(policy.lengths) % world_size
        return
    once = listed(deal(policy, 1, seed, epoch)[0])
    padded = -(-len(once) // world_size) * world_size
    assert Counter(tuple(group) for share in dealt for group in listed(share)) == Counter(
        tuple(once[i % len(once)]) for i in range(padded)
    )


@few
@given(st.integers(1, 60), WORLDS)
def test_batches_are_dealt_in_turn_and_the_leading_ones_again_to_fill_the_last_step(
    count: int, world_size: int
) -> None:
    dealt = shares(Groups(np.arange(count), np.arange(count + 1)), world_size)
    in_turn = [share.members[step] for step in range(len(dealt[0])) for share in dealt]
    steps = -(-count // world_size)
    assert in_turn == [i % count for i in range(steps * world_size)]
