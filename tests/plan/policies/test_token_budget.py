from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan import TokenBudget, Window
from few_steps import FewSteps
from plan_world import Turn, play


def lognormal(count: int, seed: int, spread: float = 1.0) -> list[int]:
    lengths = np.exp(np.random.default_rng(seed).normal(5, spread, count))
    return lengths.astype(int).clip(1, 4096).tolist()


# Nobody starves


def waits(policy: TokenBudget, sources: list[list[int]], buffer_size: int) -> list[dict[int, int]]:
    """For each rank, the rounds each sample was in the window, that of its emission included."""
    rounds_of: list[dict[int, int]] = [{} for _ in sources]
    for turns in play(policy, sources, buffer_size=buffer_size):
        for rank, turn in turns.items():
            for sample in turn.arrivals.tolist():
                rounds_of[rank][sample] = rounds_of[rank].get(sample, 0) + 1
    return rounds_of


@pytest.mark.parametrize("max_wait", [1, 4])
def test_a_long_sample_is_emitted_in_the_round_after_max_wait(max_wait: int) -> None:
    # A group of one never is among the largest while short samples keep coming.
    policy = FewSteps(100, steps=1, max_wait=max_wait)
    assert waits(policy, [[90, *[10] * 200]], 12)[0][0] == max_wait + 1


STARVING = st.tuples(
    st.integers(0, 6), st.integers(1, 3), st.integers(2, 16), st.integers(0, 10**6)
)


@settings(max_examples=20)
@given(STARVING, st.integers(1, 4))
def test_every_sample_is_emitted_within_max_wait_and_window_size_rounds(
    case: tuple[int, int, int, int], ranks: int
) -> None:
    max_wait, steps, buffer_size, seed = case
    policy = FewSteps(600, steps=steps, max_wait=max_wait)
    sources = [lognormal(80, seed + rank, spread=1.5) for rank in range(ranks)]
    for rank, rounds_of in enumerate(waits(policy, sources, buffer_size)):
        assert set(rounds_of) == set(range(len(sources[rank])))
        assert max(rounds_of.values()) <= max_wait + buffer_size


def overdue_groups(turn: Turn, max_wait: int) -> int:
    groups, ages = turn.proposal.groups, turn.window.ages
    return sum(bool((ages[groups.group(g)] >= max_wait).any()) for g in range(len(groups)))


@settings(max_examples=20)
@given(STARVING, st.integers(1, 4))
def test_overdue_samples_go_first_and_all_of_them_where_their_groups_fit(
    case: tuple[int, int, int, int], ranks: int
) -> None:
    max_wait, steps, buffer_size, seed = case
    policy = FewSteps(600, steps=steps, max_wait=max_wait)
    sources = [lognormal(80, seed + rank, spread=1.5) for rank in range(ranks)]
    for turns in play(policy, sources, buffer_size=buffer_size):
        for turn in turns.values():
            planned = np.zeros(len(turn.window), bool)
            planned[turn.plan.groups.members] = True
            overdue = turn.window.ages >= max_wait
            late = overdue_groups(turn, max_wait)
            if late <= turn.steps:
                assert planned[overdue].all()
            else:
                kept = range(turn.steps)
                assert all(overdue[turn.plan.groups.group(g)].any() for g in kept)
            if overdue.any():
                # The oldest of all has waited enough: one of its age is in every plan.
                oldest = turn.window.ages == turn.window.ages.max()
                assert planned[oldest].any()


# Emission order


def places(turn: Turn) -> list[int]:
    """For each step, the place of its group when groups are sorted from the longest down."""
    firsts = [turn.plan.groups.group(g)[0] for g in range(turn.steps)]
    order = np.argsort(
        np.argsort([(np.nonzero(turn.proposal.groups.members == f)[0][0]) for f in firsts])
    )
    return order.tolist()


def played(ranks: int = 8, **world: int) -> list[dict[int, list[int]]]:
    policy = TokenBudget(2000, spread=False)
    sources = [lognormal(120, 11) for _ in range(ranks)]
    return [
        {rank: places(turn) for rank, turn in turns.items()}
        for turns in play(policy, sources, buffer_size=40, **world)
    ]


def test_aligned_ranks_emit_the_same_places_at_every_step() -> None:
    for turns in played(seed=3):
        assert len({tuple(order) for order in turns.values()}) == 1


def test_aligned_order_is_shuffled_and_anew_each_round_seed_and_epoch() -> None:
    # Places alone, of rounds with equally many steps, so that only the shuffle can differ.
    policy = TokenBudget(100)
    drawn = {
        (seed, epoch, number): tuple(places(turns[0]))
        for seed in range(2)
        for epoch in range(2)
        for number, turns in enumerate(
            play(policy, [[60] * 60], buffer_size=30, seed=seed, epoch=epoch)
        )
    }
    assert len(drawn) == 8
    assert len(set(drawn.values())) == 8
    assert tuple(range(30)) not in drawn.values()


def test_like_lengths_meet_when_aligned() -> None:
    # Ranks draw from one distribution, so places are quantiles: at equal places, lengths are near.
    sources = [lognormal(512, seed) for seed in range(8)]

    (turns,) = play(TokenBudget(8192, spread=False), sources, buffer_size=512)
    longest = np.stack([t.plan.groups.shapes(t.window.lengths).longest for t in turns.values()])
    assert float((longest.max(0) / longest.mean(0)).mean()) < 1.3


def test_spread_groups_are_the_same_and_lengths_mix_while_costs_meet() -> None:
    sources = [lognormal(512, seed) for seed in range(8)]

    def variance_within(turns: dict[int, Turn]) -> float:
        steps = zip(*([turn.window.lengths[g] for g in groups(turn)] for turn in turns.values()))
        return float(np.mean([np.concatenate(step).var() for step in steps]))

    def groups(turn: Turn) -> list[np.ndarray]:
        return [turn.plan.groups.group(g) for g in range(turn.steps)]

    def imbalance(turns: dict[int, Turn]) -> float:
        costs = np.stack([t.plan.groups.shapes(t.window.lengths).padded for t in turns.values()])
        return float(costs.max(axis=0).sum() / costs.mean(axis=0).sum())

    (apart,) = play(TokenBudget(8192, spread=False), sources, buffer_size=512)
    (mixed,) = play(TokenBudget(8192), sources, buffer_size=512)
    assert [sorted(apart[r].emitted) for r in apart] == [sorted(mixed[r].emitted) for r in mixed]
    assert variance_within(mixed) > 2 * variance_within(apart)
    assert imbalance(mixed) <= imbalance(apart)


# Options


def test_patches_are_counted_only_where_they_are_limited() -> None:
    assert TokenBudget(100).counts_patches is False
    assert TokenBudget(100, max_patches=8).counts_patches is True


def test_a_limit_on_patches_refuses_a_window_without_them() -> None:
    ages = np.zeros(2, np.int64)
    with pytest.raises(ConfigurationError, match="max_patches=8 needs the patches"):
        TokenBudget(100, max_patches=8).propose(Window(lengths=ages + 1, ages=ages))
