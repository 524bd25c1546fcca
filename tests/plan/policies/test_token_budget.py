"""Groups under a budget of tokens: `TokenBudget`, and `SequencePacking`."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.cost import TransformerCost
from evenstep.plan import Groups, SequencePacking, TokenBudget, Window
from few_steps import FewSteps
from plan_world import Turn, play


def lognormal(count: int, seed: int, spread: float = 1.0) -> list[int]:
    lengths = np.exp(np.random.default_rng(seed).normal(5, spread, count))
    return lengths.astype(int).clip(1, 4096).tolist()


@pytest.mark.parametrize("max_wait", [1, 4])
def test_a_long_sample_is_emitted_in_the_round_after_max_wait(max_wait: int) -> None:
    # A group of one never is among the largest while short samples keep coming.
    policy = FewSteps(100, steps=1, max_wait=max_wait)
    rounds = play(policy, [[90, *[10] * 200]], buffer_size=12)
    assert sum(0 in turns[0].arrivals for turns in rounds) == max_wait + 1


def test_like_lengths_meet_and_where_spread_the_same_groups_mix_lengths_while_costs_meet() -> None:
    # Ranks draw from one distribution, so places are quantiles: at equal places, lengths are near.
    sources = [lognormal(512, seed) for seed in range(8)]
    (apart,) = play(TokenBudget(8192, spread=False), sources, buffer_size=512)
    (mixed,) = play(TokenBudget(8192), sources, buffer_size=512)

    def variance_within(turns: dict[int, Turn]) -> float:
        """Of the lengths of a step."""
        own = [
            [turn.window.lengths[turn.plan.groups.group(g)] for g in range(turn.steps)]
            for turn in turns.values()
        ]
        return float(np.mean([np.concatenate(step).var() for step in zip(*own)]))

    def of_groups(turns: dict[int, Turn], name: str) -> np.ndarray:
        shapes = [turn.plan.groups.shapes(turn.window.lengths) for turn in turns.values()]
        return np.stack([getattr(each, name) for each in shapes])

    def imbalance(turns: dict[int, Turn]) -> float:
        costs = of_groups(turns, "padded")
        return float(costs.max(axis=0).sum() / costs.mean(axis=0).sum())

    longest = of_groups(apart, "longest")
    assert float((longest.max(0) / longest.mean(0)).mean()) < 1.3
    assert [sorted(apart[r].emitted) for r in apart] == [sorted(mixed[r].emitted) for r in mixed]
    assert variance_within(mixed) > 2 * variance_within(apart)
    assert imbalance(mixed) <= imbalance(apart)


# Packed


CAPACITY = 100


def window(lengths: list[int], **options: object) -> Window:
    ages = np.array(options.pop("ages", [0] * len(lengths)), np.int64)
    return Window(lengths=np.array(lengths, np.int64), ages=ages, **options)  # type: ignore[arg-type]


def settle(policy: SequencePacking, windows: list[Window]) -> list[Groups]:
    proposals = [policy.propose(w) for w in windows]
    messages = np.stack([p.message for p in proposals])
    return [policy.settle(p, messages, rank).groups for rank, p in enumerate(proposals)]


def test_the_fullest_groups_go_and_the_least_full_waits() -> None:
    # Best fit makes 90 + 10, 60 + 35 and 50.
    windows = [window([60, 50, 90, 35, 10])] * 2
    for groups in settle(SequencePacking(CAPACITY), windows):
        assert {frozenset(groups.group(g).tolist()) for g in range(len(groups))} == {
            frozenset({2, 4}),
            frozenset({0, 3}),
        }


def test_overdue_samples_go_before_fuller_groups() -> None:
    lengths = [100, 99, 98, 40]
    young = settle(SequencePacking(CAPACITY, max_wait=2), [window(lengths, ages=[0, 0, 0, 1])])[0]
    overdue = settle(SequencePacking(CAPACITY, max_wait=2), [window(lengths, ages=[0, 0, 0, 2])])[0]
    assert 3 not in young.members
    assert 3 in overdue.members


def test_groups_of_like_cost_meet_in_a_step() -> None:
    cost = TransformerCost(layers=1, hidden_size=1, heads=1, ffn_size=1)
    policy = SequencePacking(CAPACITY, cost=cost)
    rng = np.random.default_rng(0)
    windows = [
        window(rng.integers(1, CAPACITY, 200).tolist(), seed=1, exhausted=True) for _ in range(4)
    ]
    planned = settle(policy, windows)
    costs = np.stack(
        [cost(g.shapes(w.lengths), packed=True) for g, w in zip(planned, windows)], axis=1
    )
    by_place = np.sort(costs, axis=0)
    assert costs.max(axis=1).sum() == pytest.approx(by_place.max(axis=1).sum())
