"""PoolSort: like lengths at like times on every rank, without an exchange of lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import GroupShapes
from evenstep.plan import Window
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.tools.simulate import SimulationResult, simulate
from plan_world import Turn, play

BATCHES = st.integers(1, 8)
POOLS = st.integers(8, 64)
SEEDS = st.integers(0, 2**32)


def lengths_of(count: int, seed: int) -> list[int]:
    draw = np.random.default_rng(seed)
    return np.exp(draw.normal(5, 1.2, count)).astype(int).clip(1, 100_000).tolist()


def emitted(rounds: list[dict[int, Turn]], rank: int) -> list[list[int]]:
    return [group for turns in rounds if rank in turns for group in turns[rank].emitted]


def settle_one(policy: PoolSort, lengths: list[int], counts: list[int]) -> list[list[int]]:
    """Groups of window positions of a rank that is one of several with `counts` samples."""
    window = Window(
        lengths=np.array(lengths, np.int64), ages=np.zeros(len(lengths), np.int64), seed=3
    )
    messages = np.array(counts, np.int64)[:, None]
    plan = policy.settle(policy.propose(window), messages, counts.index(len(lengths)))
    return [plan.groups.group(g).tolist() for g in range(len(plan.groups))]


# Alignment


@given(BATCHES, POOLS, st.integers(1, 200), st.integers(2, 8), SEEDS)
def test_ranks_with_equal_lengths_train_on_equal_lengths_in_every_step_however_they_come(
    batch_size: int, pool: int, count: int, ranks: int, seed: int
) -> None:
    policy = PoolSort(batch_size, pool_size=pool)
    lengths = lengths_of(count, seed)
    size = policy.window_size(10_000)
    draw = np.random.default_rng(seed)
    # Each rank has the same samples in every pool, in another order.
    sources = [
        [one for k in range(0, count, size) for one in draw.permutation(lengths[k : k + size])]
        for _ in range(ranks)
    ]
    for turns in play(policy, sources, buffer_size=10_000, seed=seed):
        steps = [
            [sorted(turn.window.lengths[turn.plan.groups.group(g)]) for g in range(turn.steps)]
            for turn in turns.values()
        ]
        assert all(one == steps[0] for one in steps)


@given(BATCHES, st.lists(st.integers(1, 120), min_size=2, max_size=8))
def test_ranks_with_unequally_many_samples_take_the_same_quantiles_in_every_step(
    batch_size: int, counts: list[int]
) -> None:
    policy = PoolSort(batch_size)
    places = {}
    for count in set(counts):
        # Lengths increase with the position, so a position over the count is a quantile.
        groups = settle_one(policy, list(range(1, count + 1)), counts)
        taken = sum(map(len, groups))
        places[count] = [np.mean(group) / taken + 0.5 / taken for group in groups], taken
    steps = {len(one) for one, _ in places.values()}
    assert len(steps) == 1
    (steps,) = steps
    for one, few in places.values():
        for other, many in places.values():
            apart = np.abs(np.array(one) - np.array(other))
            assert apart.max() <= 1 / min(few, many) + 1e-9


@given(BATCHES, st.integers(1, 60), st.integers(1, 300), SEEDS)
def test_what_does_not_fit_beside_a_rank_that_runs_out_is_kept_youngest_first(
    batch_size: int, few: int, many: int, seed: int
) -> None:
    policy = PoolSort(batch_size)
    groups = settle_one(policy, lengths_of(many, seed), [few, many])
    taken = sorted(position for group in groups for position in group)
    assert taken == list(range(min(many, len(groups) * batch_size)))
    assert all(1 <= len(group) <= batch_size for group in groups)


# What is in a batch


@given(BATCHES, POOLS, st.integers(1, 150), SEEDS)
def test_batches_of_a_pool_do_not_overlap_in_length(
    batch_size: int, pool: int, count: int, seed: int
) -> None:
    policy = PoolSort(batch_size, pool_size=pool)
    lengths = lengths_of(count, seed)
    for turns in play(policy, [lengths], buffer_size=1, seed=seed):
        spans = sorted(
            (min(lengths[i] for i in group), max(lengths[i] for i in group))
            for group in turns[0].emitted
        )
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_the_order_of_steps_tells_nothing_of_length() -> None:
    rounds = list(play(PoolSort(4), [lengths_of(4096, 1)], buffer_size=1024))
    lengths = lengths_of(4096, 1)
    means = [np.mean([np.log(lengths[i]) for i in group]) for group in emitted(rounds, 0)]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 3 / np.sqrt(len(means))


# What it is worth

B0 = {8: 1.45}
"""Ranks -> imbalance that was measured of the method with batches of one and pools of 1024, where
lengths are lognormal (median 1024, sigma 1.4)."""


def quadratic(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return shapes.padded * (shapes.longest + 8192.0)


def b0(ranks: int, count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(7)
    lengths = np.exp(draw.normal(np.log(1024), 1.4, (ranks, count)))
    return list(lengths.clip(16, 131_072).astype(np.int64))


@pytest.mark.parametrize(("ranks", "published"), B0.items())
def test_imbalance_is_that_of_the_published_method(ranks: int, published: float) -> None:
    result = simulate(PoolSort(1, cost=quadratic), b0(ranks, 1024), buffer_size=1024)
    assert 0.85 * published < result.imbalance < 1.15 * published


# Pools


@given(BATCHES, st.none() | POOLS, st.integers(1, 1000))
def test_a_pool_is_a_whole_number_of_batches_and_no_larger_than_asked(
    batch_size: int, pool: int | None, buffer_size: int
) -> None:
    size = PoolSort(batch_size, pool_size=pool).window_size(buffer_size)
    asked = buffer_size if pool is None else pool
    assert size % batch_size == 0
    assert max(asked - batch_size, 0) < size <= max(asked, batch_size)


# Spread


def accumulated(policy: PoolSort, ranks: int = 4, accumulate: int = 4) -> SimulationResult:
    shards = list(np.random.default_rng(0).integers(10, 1000, (ranks, 2000)))
    return simulate(policy, shards, buffer_size=512, accumulate=accumulate)


def test_the_steps_of_an_update_are_spread_over_lengths_at_no_loss_of_evenness() -> None:
    paper, spread = (accumulated(PoolSort(8, spread=on)) for on in (False, True))
    assert paper.composition < 0.8  # by chance alone, of 4 steps
    assert spread.composition > 0.9
    assert spread.imbalance == pytest.approx(paper.imbalance)
    assert spread.padding == pytest.approx(paper.padding)
