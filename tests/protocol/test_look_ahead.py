"""Ranks that know how many samples they have left run out together; a rank that never received a
sample borrows one to run zero-loss steps with."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan import TokenBudget
from evenstep.plan.epoch import Stream
from worlds import KEEPING, POLICIES, SHARDS, World, arrivals, visible

BUFFERS = st.integers(1, 40)
RANDOMS = st.randoms(use_true_random=False)
BUDGETS = st.builds(
    TokenBudget,
    st.integers(30, 200),
    max_wait=st.integers(0, 3),
    spread=st.booleans(),
)
"""Policies that plan all that they can of a window."""


def sizes(shards):
    return [len(shard) for shard in shards]


def visible_steps(world):
    return [[visible(step) for step in steps] for steps in world.steps()]


def fillers(world):
    """Filler steps of each rank."""
    steps = list(world.steps())
    return [sum(made[rank].filler for made in steps) for rank in range(len(world.shards))]


@st.composite
def even_shards(draw):
    """Shards whose sizes differ by at most one, of lengths that differ as they may."""
    world = draw(st.integers(1, 8))
    total = draw(st.integers(1, 30 * world))
    random = draw(RANDOMS)
    longest = [random.choice([1, 5, 30]) for _ in range(world)]
    shards = [len(Stream(total).share(rank, world, even=False)) for rank in range(world)]
    return [
        [random.randint(1, most) if random.random() < 0.8 else 30 for _ in range(count)]
        for count, most in zip(shards, longest)
    ]


@settings(max_examples=15)
@given(BUDGETS, even_shards(), BUFFERS, RANDOMS)
def test_shares_of_one_size_need_no_filler_and_others_one_at_most(
    policy, shards, buffer_size, random
):
    world = World(policy, shards, buffer_size, shares=sizes(shards), **arrivals(random))
    made = fillers(world)
    assert max(made) <= len(set(sizes(shards))) - 1


def test_a_smaller_share_is_spread_over_as_many_rounds_as_the_largest():
    shards = [[5] * 10, [5] * 7]
    world = World(TokenBudget(20), shards, 4, shares=sizes(shards))
    first = next(world.steps())
    assert [len(step.round.start.numbers) for step in first] == [4, 3]


@settings(max_examples=15)
@given(KEEPING, SHARDS, BUFFERS, RANDOMS, st.data())
def test_a_wrong_share_costs_rounds_but_no_sample(policy, shards, buffer_size, random, data):
    shares = sizes(shards)
    for rank in data.draw(st.sets(st.integers(0, len(shards) - 1), min_size=1)):
        shares[rank] = data.draw(st.sampled_from([0, 1, 10**6]) | st.integers(0, 80))
    world = World(policy, shards, buffer_size, shares=shares, **arrivals(random))
    steps = list(world.steps())
    for rank, shard in enumerate(shards):
        trained = [number for made in steps for number in made[rank].members.tolist()]
        assert sorted(trained) == list(range(len(shard)))
    # Each round but the last trains on a sample of every rank that has any.
    assert world.exchanges <= 2 + 2 * max(sizes(shards))


# Ranks without a sample


@st.composite
def partly_empty(draw):
    """Shards of which at least one is empty and one is not."""
    shards = draw(st.lists(st.lists(st.integers(1, 30), max_size=20), min_size=2, max_size=6))
    draw_rank = st.integers(0, len(shards) - 1)
    for rank in draw(st.sets(draw_rank, min_size=1, max_size=len(shards) - 1)):
        shards[rank] = []
    empty = [rank for rank, shard in enumerate(shards) if not shard]
    if len(empty) == len(shards):
        shards[draw(draw_rank)] = draw(st.lists(st.integers(1, 30), min_size=1, max_size=20))
    return shards


def check_lent(world):
    """Drives a world to its end, and checks which rank lent which sample."""
    made = list(world.steps())
    starts = {steps[0].round.start.round: [step.round.start for step in steps] for steps in made}
    for round, rank, number in world.lent:
        # In a round, by one rank: the first that has any, and the shortest of its window.
        having = [len(start.numbers) > 0 for start in starts[round]]
        assert rank == having.index(True)
        window = starts[round][rank]
        lengths = dict(zip(window.numbers.tolist(), window.columns[0].tolist()))
        assert lengths[number] == min(lengths.values())
    assert len({round for round, _, _ in world.lent}) == len(world.lent)
    return made


@settings(max_examples=15)
@given(KEEPING, partly_empty(), BUFFERS, RANDOMS, st.booleans())
def test_ranks_without_a_sample_are_lent_the_shortest_of_the_first_rank_that_has_any(
    policy, shards, buffer_size, random, known
):
    shares = sizes(shards) if known else None
    world = World(policy, shards, buffer_size, shares=shares, lends=True, **arrivals(random))
    made = check_lent(world)
    # Once, before the first step, and to no rank besides.
    ((round, lender, number),) = world.lent
    assert round == 0
    for shard, machine in zip(shards, world.machines):
        assert machine.lending.borrowed == (b"" if shard else f"{lender}:{number}".encode())
    # What is lent is trained on by its own rank as well, and by no other.
    assert visible_steps(replace(world, lends=False)) == [
        [visible(step) for step in steps] for steps in made
    ]


@settings(max_examples=15)
@given(KEEPING, partly_empty(), BUFFERS, st.integers(1, 30), RANDOMS, st.booleans())
def test_ranks_that_have_run_out_are_lent_a_sample_when_they_are_resumed(
    policy, shards, buffer_size, most, random, known
):
    shares = sizes(shards) if known else None
    world = World(policy, shards, buffer_size, shares=shares, lends=True, **arrivals(random))
    steps = world.steps()
    begun = list(islice(steps, most))
    checkpoints = world.checkpoints(begun[-1])
    rest = [[visible(step) for step in made] for made in steps]
    # Exactly: a rank that had run out has no sample at hand now, whatever it held before; and one
    # that had trained on all of its window may run out without another.
    resumed = world.resumed(checkpoints, lends=True)
    again = check_lent(resumed)[checkpoints[0].received :]
    assert [[visible(step) for step in made] for made in again] == rest
    assert resumed.lent
    # With other windows: there may be nothing left to lend, and then no step to fill.
    rewindowed = world.rewindowed(checkpoints, buffer_size + 1, lends=True)
    made = check_lent(rewindowed)
    assert bool(made) == bool(rewindowed.lent)


@given(POLICIES, partly_empty(), BUFFERS)
def test_nothing_is_lent_where_the_first_to_run_out_ends_the_epoch(policy, shards, buffer_size):
    world = World(policy, shards, buffer_size, exhausted="stop", lends=True)
    assert list(world.steps()) == []
    assert world.lent == []
    assert not any(machine.lending.borrowed for machine in world.machines)
