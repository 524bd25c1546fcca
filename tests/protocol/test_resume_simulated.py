"""Resume, in simulated worlds: stopped after any step and resumed, any number of times, an epoch
trains on what it would have trained on.

A rank's checkpoint is the `RoundStart` of the round under way and how many of its steps the trainer
has received.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import MismatchError
from evenstep.plan.epoch import Stream
from worlds import KEEPING, POLICIES, SHARDS, World, arrivals, visible

BUFFERS = st.integers(1, 25)
KILLS = st.lists(st.integers(0, 12), min_size=1, max_size=6)
"""Steps between one resume and the next."""
RANDOMS = st.randoms(use_true_random=False)
KNOWN = st.booleans()
"""Whether ranks know their shares, where arrival numbers may be missing."""


def shares_of(shards, known):
    return [len(shard) for shard in shards] if known else None


def some_lengths(count, seed):
    return np.random.default_rng(seed).integers(1, 31, count).tolist()


# Drawn by a seed, as hypothesis by itself draws short lists: in those an epoch is soon over.
LENGTHS = st.builds(some_lengths, st.integers(0, 120), st.integers(0, 2**32))


@st.composite
def dealt_shards(draw):
    """Shards that a stream deals out: sizes differ by at most one."""
    lengths, world = draw(LENGTHS), draw(st.integers(1, 8))
    shares = [Stream(len(lengths)).share(rank, world, even=False) for rank in range(world)]
    return [[lengths[position] for position in share] for share in shares]


@settings(max_examples=20)
@given(
    POLICIES,
    SHARDS | dealt_shards(),
    BUFFERS,
    KILLS,
    RANDOMS,
    st.sampled_from(["pad", "stop"]),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
)
def test_exact_resume_makes_the_very_steps_of_the_uninterrupted_run(
    policy, shards, buffer_size, kills, random, exhausted, known, bad_share
):
    missing = [{n for n in range(len(shard)) if random.random() < bad_share} for shard in shards]
    sizes = shares_of(shards, known)
    first = World(
        policy, shards, buffer_size, exhausted, sizes, missing=missing, **arrivals(random)
    )
    whole = [[visible(step) for step in steps] for steps in first.steps()]
    assert [[own[0] for own in steps] for steps in whole] == [
        [number] * len(shards) for number in range(len(whole))
    ]
    for rank, (shard, bad, machine) in enumerate(zip(shards, missing, first.machines)):
        trained = [number for steps in whole for number in steps[rank][1]]
        assert len({*trained}) == len(trained) == machine.emitted
        assert not bad.intersection(trained)
        assert machine.pending == 0
        if exhausted == "pad":
            assert machine.emitted + machine.dropped + len(bad) == len(shard)
            assert machine.dropped == 0 or policy.drop_last
        else:
            assert not any(steps[rank][-1] for steps in whole), "a filler"
    # Each round but those in which a rank only drops emits a sample on every rank that has any; a
    # round is two exchanges, and there is one hello and one farewell.
    assert first.exchanges <= 2 + 2 * max(map(len, shards))
    assert resumed_often(first, kills, random) == whole


def resumed_often(first, kills, random):
    """All steps of an epoch that begins like `first`, and is stopped and resumed after each number
    of steps in `kills`."""
    world, resumed, skip, checkpoints = first, [], 0, None
    for kill in [*kills, 10**9]:
        if checkpoints is None:
            world = replace(first, **arrivals(random))
        else:
            world = world.resumed(checkpoints, **arrivals(random))
        steps, last = world.steps(), None
        replayed = [[visible(step) for step in next(steps)] for _ in range(skip)]
        assert replayed == resumed[len(resumed) - skip :]
        for last in islice(steps, kill):
            resumed.append([visible(step) for step in last])
        if last is not None:  # else stopped before any step: the former checkpoint stands
            checkpoints = world.checkpoints(last)
            skip = checkpoints[0].received
            assert {one.step for one in checkpoints} == {last[0].index + 1}
    return resumed


LEGS = st.lists(
    st.tuples(
        st.sampled_from(["exact", "window", "world"]),
        st.integers(1, 5),
        BUFFERS,
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=8,
)


def elastic_epoch(policy, lengths, ranks, legs, random, known):
    """An epoch with resumes of all kinds in it. Yields the positions of every step, by rank."""

    def deal(ranks, buffer_size, checkpoints=()):
        nonlocal shares
        shares = [stream.share(rank, ranks, even=False) for rank in range(ranks)]
        shards = [[lengths[position] for position in share] for share in shares]
        rewound = [checkpoints[0].rewound()] * ranks if checkpoints else None
        sizes = shares_of(shards, known)
        return World(policy, shards, buffer_size, shares=sizes, starts=rewound, **arrivals(random))

    stream, shares = Stream(len(lengths)), []
    world, skip, index, done = deal(ranks, 8), 0, 0, []
    for kind, most, size, ranks in [*legs, ("", 10**9, 1, 1)]:
        steps, last = world.steps(), None
        for _ in range(skip):
            next(steps)
        for made in steps:
            last = made
            assert {step.index for step in made} == {index}
            index += 1
            positions = [
                share[step.members].tolist() for share, step in zip(shares, made, strict=True)
            ]
            done += [position for own in positions for position in own]
            yield positions
            most -= 1
            if not most:
                break
        else:
            return
        checkpoints = world.checkpoints(last)
        if kind == "exact":
            skip = checkpoints[0].received
            world = world.resumed(checkpoints, **arrivals(random))
            continue
        skip = 0
        if kind == "window":
            world = world.rewindowed(checkpoints, size, **arrivals(random))
            continue
        stream = stream.after([one.progress for one in checkpoints])
        left = np.setdiff1d(np.arange(len(lengths)), done)
        assert stream.share(0, 1, even=False).tolist() == left.tolist()
        world = deal(ranks, size, checkpoints)


@settings(max_examples=20)
@given(KEEPING, LENGTHS, st.integers(1, 8), LEGS, RANDOMS, KNOWN)
def test_any_chain_of_worlds_trains_every_position_once(
    policy, lengths, ranks, legs, random, known
):
    uses = Counter(
        position
        for step in elastic_epoch(policy, lengths, ranks, legs, random, known)
        for own in step
        for position in own
    )
    assert sorted(uses.elements()) == list(range(len(lengths)))


def refused_by_all(world):
    said = []
    messages = [machine.outgoing() for machine in world.machines]
    for machine in world.machines:
        with pytest.raises(MismatchError, match="load the states of one checkpoint") as caught:
            machine.incoming(messages)
        said.append(str(caught.value))
    assert len(set(said)) == 1
    return said[0]


@given(
    POLICIES,
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=40), min_size=2, max_size=6),
    BUFFERS,
    st.data(),
)
def test_checkpoints_of_different_steps_are_refused_by_every_rank(policy, shards, size, data):
    world = World(policy, shards, size)
    made = list(islice(world.steps(), 20))
    # Two at the least, or nobody can mistake one for another.
    if len(made) < 2:
        return
    later = data.draw(st.integers(1, len(made) - 1))
    earlier = data.draw(st.integers(0, later - 1))
    culprit = data.draw(st.integers(0, len(shards) - 1))
    mixed = world.checkpoints(made[later])
    mixed[culprit] = world.checkpoints(made[earlier])[culprit]
    ranks = f"rank 0 has .*, rank {culprit or 1} has "

    differ = "round" if len({one.start.round for one in mixed}) > 1 else "step"
    refused = refused_by_all(world.rewindowed(mixed, size + 1))
    assert re.match(f"ranks differ in {differ} to begin with: {ranks}", refused)

    # A round has one beginning, whichever of its steps was the last: that is an option.
    options = [{"last step received": one.step} for one in mixed]
    refused = refused_by_all(world.resumed(mixed, options=options))
    assert re.match(f"ranks differ in last step received: {ranks}", refused)
    if differ == "round":
        refused = refused_by_all(world.resumed(mixed))
        assert re.match(f"ranks differ in round to begin with: {ranks}", refused)
