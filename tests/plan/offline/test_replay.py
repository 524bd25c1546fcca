"""An epoch planned offline comes as it was planned, in equal steps, whatever is missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InvariantError
from evenstep.plan import FixedBatch, Window
from evenstep.plan.offline.replay import ReplayPolicy
from worlds import World, arrivals

RANDOMS = st.randoms(use_true_random=False)


@st.composite
def dealt_epochs(draw):
    """Lengths of each rank's share, and where its groups end: equally many groups on all ranks."""
    steps = draw(st.integers(1, 12))
    sizes = [
        draw(st.lists(st.integers(1, 6), min_size=steps, max_size=steps))
        for _ in range(draw(st.integers(1, 4)))
    ]
    shards = [draw(st.lists(st.integers(1, 30), min_size=sum(s), max_size=sum(s))) for s in sizes]
    return shards, [np.cumsum(s) for s in sizes]


def world_of(shards, ends, buffer_size, **options) -> World:
    size = max(buffer_size, *(int(np.diff(e, prepend=0).max()) for e in ends))
    policies = [ReplayPolicy(FixedBatch(8), e) for e in ends]
    return World(policies, shards, size, **options)


@given(dealt_epochs(), st.integers(1, 20), RANDOMS)
def test_every_rank_makes_its_groups_in_their_order(epoch, buffer_size, random) -> None:
    shards, ends = epoch
    made = list(world_of(shards, ends, buffer_size, **arrivals(random)).steps())
    assert len(made) == len(ends[0])
    for rank, bounds in enumerate(ends):
        expected = np.split(np.arange(bounds[-1]), bounds[:-1])
        assert [step[rank].members.tolist() for step in made] == [e.tolist() for e in expected]


@given(dealt_epochs(), st.integers(1, 20), RANDOMS, st.data())
def test_a_skipped_sample_is_missing_from_its_group_alone(epoch, size, random, data) -> None:
    shards, ends = epoch
    missing = [data.draw(st.sets(st.integers(0, len(shard) - 1))) for shard in shards]
    world = world_of(shards, ends, size, missing=missing, **arrivals(random))
    made = list(world.steps())
    for rank, bounds in enumerate(ends):
        expected = [
            [number for number in group.tolist() if number not in missing[rank]]
            for group in np.split(np.arange(bounds[-1]), bounds[:-1])
        ]
        came = [step[rank].members.tolist() for step in made if not step[rank].filler]
        assert came == [group for group in expected if group]


def test_a_window_without_a_complete_group_is_refused() -> None:
    window = Window(lengths=np.array([3, 4]), ages=np.zeros(2, np.int64), numbers=np.array([0, 1]))
    with pytest.raises(InvariantError, match="holds no complete group"):
        ReplayPolicy(FixedBatch(3), np.array([3])).propose(window)
