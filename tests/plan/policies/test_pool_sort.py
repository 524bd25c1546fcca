"""Batches of a fixed number of samples: `FixedBatch`, and `PoolSort`, which takes like lengths at
like times on every rank, without an exchange of lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan import FixedBatch, PoolSort, Window
from evenstep.tools.simulate import SimulationResult, simulate
from plan_world import play

BATCHES = st.integers(1, 8)
POOLS = st.integers(8, 64)
SEEDS = st.integers(0, 2**32)


def lengths_of(count: int, seed: int) -> list[int]:
    draw = np.random.default_rng(seed)
    return np.exp(draw.normal(5, 1.2, count)).astype(int).clip(1, 100_000).tolist()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    BATCHES,
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_fixed_batches_are_consecutive_samples_and_only_the_rest_of_a_rank_is_dropped(
    counts: list[int], batch_size: int, buffer_size: int, late_end: bool, drop_last: bool
) -> None:
    policy = FixedBatch(batch_size, drop_last=drop_last)
    batches: list[list[list[int]]] = [[] for _ in counts]
    dropped: list[list[int]] = [[] for _ in counts]
    sources = [[1 + (7 * i) % 50 for i in range(count)] for count in counts]
    for turns in play(policy, sources, buffer_size=buffer_size, late_end=late_end):
        for rank, turn in turns.items():
            batches[rank] += turn.emitted
            dropped[rank] += turn.dropped
    for rank, count in enumerate(counts):
        rest = count % batch_size if drop_last else 0
        cuts = range(0, count - rest, batch_size)
        assert batches[rank] == [list(range(i, min(i + batch_size, count))) for i in cuts]
        assert sorted(dropped[rank]) == list(range(count - rest, count))


def test_the_rest_is_dropped_with_the_last_batch_and_costs_no_further_round() -> None:
    (turns,) = play(FixedBatch(2, drop_last=True), [[1, 8, 15, 22, 29]], buffer_size=8)
    assert turns[0].emitted == [[0, 1], [2, 3]]
    assert turns[0].dropped == [4]


@given(BATCHES, st.none() | POOLS, st.integers(1, 1000))
def test_a_window_is_a_whole_number_of_batches_and_no_larger_than_asked(
    batch_size: int, pool: int | None, buffer_size: int
) -> None:
    size = FixedBatch(batch_size).window_size(buffer_size)
    assert size % batch_size == 0
    assert 0 < size <= max(buffer_size, batch_size)
    asked = pool or buffer_size
    size = PoolSort(batch_size, pool_size=pool).window_size(buffer_size)
    assert size % batch_size == 0
    assert max(asked - batch_size, 0) < size <= max(asked, batch_size)


# Pools


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
        spans = sorted((group[0], group[-1]) for group in steps[0])
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def settle_one(policy: PoolSort, lengths: list[int], counts: list[int]) -> list[list[int]]:
    """Groups of window positions of a rank that is one of several with `counts` samples."""
    window = Window(
        lengths=np.array(lengths, np.int64), ages=np.zeros(len(lengths), np.int64), seed=3
    )
    messages = np.array(counts, np.int64)[:, None]
    plan = policy.settle(policy.propose(window), messages, counts.index(len(lengths)))
    return [plan.groups.group(g).tolist() for g in range(len(plan.groups))]


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
    assert len({len(one) for one, _ in places.values()}) == 1
    for one, few in places.values():
        for other, many in places.values():
            apart = np.abs(np.array(one) - np.array(other))
            assert apart.max() <= 1 / min(few, many) + 1e-9


@given(BATCHES, st.integers(1, 60), st.integers(1, 300), SEEDS)
def test_what_does_not_fit_beside_a_rank_that_runs_out_is_kept_youngest_first(
    batch_size: int, few: int, many: int, seed: int
) -> None:
    groups = settle_one(PoolSort(batch_size), lengths_of(many, seed), [few, many])
    taken = sorted(position for group in groups for position in group)
    assert taken == list(range(min(many, len(groups) * batch_size)))
    assert all(1 <= len(group) <= batch_size for group in groups)


def accumulated(policy: PoolSort, ranks: int = 4, accumulate: int = 4) -> SimulationResult:
    shards = list(np.random.default_rng(0).integers(10, 1000, (ranks, 2000)))
    return simulate(policy, shards, buffer_size=512, accumulate=accumulate)


def test_the_steps_of_an_update_are_spread_over_lengths_at_no_loss_of_evenness() -> None:
    paper, spread = (accumulated(PoolSort(8, spread=on)) for on in (False, True))
    assert paper.composition < 0.8  # by chance alone, of 4 steps
    assert spread.composition > 0.9
    assert spread.imbalance == pytest.approx(paper.imbalance)
    assert spread.padding == pytest.approx(paper.padding)
