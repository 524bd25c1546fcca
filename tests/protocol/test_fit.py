"""``max_tokens="auto"``: groups grow to what fits on every rank, alike on all, and no sample is
lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan import Even
from evenstep.plan.fit import Fit, Updates
from evenstep.plan.update_size import sizes_of
from evenstep.protocol.window_buffer import RoundStart
from worlds import World, visible

LENGTHS = st.lists(st.lists(st.integers(1, 60), max_size=40), min_size=1, max_size=4)


@given(
    st.lists(st.integers(1, 9), max_size=6),
    st.lists(st.integers(1, 12), max_size=6),
)
def test_updates_are_counted_whatever_steps_they_have(sizes, lengths) -> None:
    updates, step, number = Updates(3), 0, 0
    for size, repeats in zip(sizes, lengths):
        updates = updates.of(size, step)
        assert updates.accumulate == size
        for _ in range(repeats):
            for micro_step in range(size):
                assert (updates.number(step), updates.micro_step(step)) == (number, micro_step)
                step += 1
            number += 1


def _world(shards, packed, memory, accumulate=1, sizes=()) -> World:
    """Groups begin with 20 tokens, and grow to the memory of each rank, at most twofold."""
    begin = RoundStart.empty(fits=(Fit(20), Fit(20)))
    return World(
        Even("auto", packed=packed),
        shards,
        buffer_size=64,
        accumulate=accumulate,
        sizes=sizes,
        starts=[begin] * len(shards),
        fits=lambda rank, tokens: max(1, min(memory[rank % len(memory)], 2 * tokens)),
    )


@given(
    LENGTHS,
    st.booleans(),
    st.lists(st.integers(10, 400), min_size=1, max_size=6),
    st.integers(1, 3),
    st.data(),
)
def test_every_sample_comes_once_in_groups_that_fit_and_a_resume_makes_the_same(
    shards, packed, memory, accumulate, data
) -> None:
    world = _world(shards, packed, memory, accumulate)
    steps = list(world.steps())
    for rank, shard in enumerate(shards):
        members = [number for step in steps for number in step[rank].members.tolist()]
        assert sorted(members) == list(range(len(shard)))
    for step in steps:
        fits = {one.round.start.fits for one in step}
        assert len(fits) == 1
        now, _ = fits.pop()
        for rank, one in enumerate(step):
            lengths = [shards[rank][number] for number in one.members.tolist()]
            held = sum(lengths) if packed else len(lengths) * max(lengths, default=0)
            assert held <= now.most
            assert held <= max(20, memory[rank % len(memory)], now.longest)
    if not steps:
        return
    stop = data.draw(st.integers(0, len(steps) - 1))
    again = _world(shards, packed, memory, accumulate)
    for step in again.steps():
        if step[0].index == stop:
            break
    resumed = list(again.resumed(again.checkpoints(step)).steps())
    rest = [[visible(one) for one in step] for step in steps if step[0].index > stop]
    made = [[visible(one) for one in step] for step in resumed if step[0].index > stop]
    assert made == rest


def test_groups_grow_to_what_fits_on_the_rank_with_the_least_memory() -> None:
    drawn = np.random.default_rng(0).integers(1, 60, (2, 400)).tolist()
    for packed in (False, True):
        world = _world(drawn, packed, [400, 300])
        fits = [step[0].round.start.fits[0].most for step in world.steps()]
        assert fits[:8] == [59, 59, 118, 118, 236, 236, 300, 300]  # 59 is the longest sample
        assert set(fits[8:]) == {300}


def test_an_update_of_fixed_tokens_has_fewer_steps_once_larger_groups_fit() -> None:
    drawn = np.random.default_rng(0).integers(1, 60, (2, 1500))
    policy = Even("auto", packed=True)
    sizes = sizes_of(policy, 2400, ranks=2, lengths=None)
    assert sizes[0] == (1, 1200)
    assert [tokens for _, tokens in sizes] == sorted((t for _, t in sizes), reverse=True)
    sizes = tuple((steps, -(-1200 // steps)) for steps in (1, 2, 3, 4, 5, 7, 9, 12, 15, 19, 24, 60))
    world = _world(drawn.tolist(), True, [400, 450], 1, sizes)
    tokens: dict[int, int] = {}
    steps: dict[int, int] = {}
    for first, second in world.steps():
        updates = first.round.start.updates
        assert updates == second.round.start.updates
        number = updates.number(first.index)
        tokens[number] = tokens.get(number, 0) + int(first.totals.tokens.sum())
        steps[number] = steps.get(number, 0) + 1
    made = list(steps.values())
    assert made[0] == 24  # groups of 59 tokens, as the longest sample has
    assert made[-10] == 3
    whole = [tokens[number] for number in list(tokens)[:-8]]
    assert min(whole) > 0.85 * 2400
    assert max(whole) <= 1.2 * 2400
