"""`Even`: equal cost on every rank in every step, and lengths mixed from first to last."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.planning.image_cells import drawn_images
from evenstep.cost import (
    UNKNOWN_MODEL,
    Cost,
    PaddedTokenCost,
    TransformerCost,
    VisionLanguageCost,
)
from evenstep.plan import Even, Policy, TokenBudget
from evenstep.plan.policies.even.timed import counts
from evenstep.tools.simulate import DISTRIBUTIONS, SimulationResult, deal, load_lengths, simulate
from evenstep.tools.simulate.run import run_epoch
from plan_world import play

MAX_TOKENS = 12_288
LARGE_MODEL = TransformerCost(
    layers=32, hidden_size=4096, heads=32, ffn_size=14336, kv_heads=8, vocab_size=128_256
)


def drawn(name: str, count: int, seed: int = 3, longest: int = MAX_TOKENS) -> np.ndarray:
    return np.minimum(load_lengths(name, samples=count, seed=seed), longest)


def run(policy: Policy, name: str, *, ranks: int = 8, samples: int = 800) -> SimulationResult:
    lengths, shards = drawn(name, ranks * samples), deal(ranks * samples, ranks, seed=3)
    return simulate(policy, [lengths[s] for s in shards], identities=shards, buffer_size=512)


@pytest.mark.parametrize(
    ("name", "cost"), [("ultrachat", UNKNOWN_MODEL), ("llava", PaddedTokenCost())]
)
def test_ranks_wait_less_than_under_a_token_budget_and_pad_no_more(name: str, cost: Cost) -> None:
    even, budget = (run(policy(MAX_TOKENS, cost=cost), name) for policy in (Even, TokenBudget))
    assert even.missing == even.duplicates == even.undelivered == 0
    assert even.filler_steps <= 8  # equal shares run out together
    assert even.imbalance - 1 < 0.2 * (budget.imbalance - 1)
    assert even.padding < 1.1 * budget.padding
    assert even.efficiency > budget.efficiency
    assert even.composition > 0.8
    if cost is not UNKNOWN_MODEL:  # by which a group that is full of time holds fewer tokens
        assert even.samples_per_step > 0.95 * budget.samples_per_step


def test_packed_groups_are_full_of_time_and_cost_the_same_until_sources_end() -> None:
    lengths = drawn("sharegpt4o", 8000, seed=4)
    sources = [lengths[rank::4].tolist() for rank in range(4)]
    times: list[int] = []
    costs: list[np.ndarray] = []
    for turns in play(Even(MAX_TOKENS, packed=True, cost=LARGE_MODEL), sources, buffer_size=1024):
        if all(turn.window.exhausted for turn in turns.values()):
            break
        shapes = [turn.plan.groups.shapes(turn.window.lengths) for turn in turns.values()]
        for turn in turns.values():
            taken = counts(LARGE_MODEL, turn.window.lengths, packed=True)
            times += [int(taken[turn.plan.groups.group(g)].sum()) for g in range(turn.steps)]
        costs.append(np.stack([LARGE_MODEL(shape, packed=True) for shape in shapes], axis=1))
    assert np.mean(times) > 0.99 * MAX_TOKENS
    by_step = np.concatenate(costs)
    assert by_step.max(axis=1).sum() / by_step.mean(axis=1).sum() < 1.01


def test_groups_come_to_their_target_though_long_samples_need_a_larger_limit() -> None:
    lengths = np.random.default_rng(0).integers(50, 150, 4000)
    lengths[::500] = 20_000
    shards = [lengths[shard] for shard in deal(4000, 4, 0)]
    plain, aimed = (
        simulate(Even(20_000, target_tokens=target), shards, buffer_size=256)
        for target in (None, 2_000)
    )
    assert aimed.missing == 0
    assert aimed.padding < plain.padding / 2
    assert aimed.steps > 2 * plain.steps


@pytest.mark.timeout(60)
def test_an_update_may_have_far_more_steps_than_there_are() -> None:
    lengths = np.arange(1, 41)
    result = simulate(Even(64), [lengths, lengths], accumulate=2**31)
    assert result.missing == result.duplicates == 0


def test_long_samples_are_not_left_to_the_last_quarter() -> None:
    """They were: samples of the last quarter were 2.3 and 2.9 times as long as of the first."""
    lengths = load_lengths("coyo-image", samples=8 * 3000, seed=0)
    shards = deal(len(lengths), 8)
    policy = Even(DISTRIBUTIONS["coyo-image"].max_tokens)
    epoch = run_epoch(policy, [lengths[shard] for shard in shards], identities=shards)
    steps = [lengths[epoch.step(n)].astype(float) for n in range(len(epoch.ranks[0].steps))]
    means = []
    for quarter in np.array_split(np.arange(len(steps)), 4):
        taken = np.concatenate([steps[n] for n in quarter])
        means.append((taken**2).sum() / taken.sum())
    assert means[3] < 1.8 * means[0]


# Costs of two parts: both are equal on all ranks, and images are on all or none.

BOTH = VisionLanguageCost(
    language=TransformerCost(
        layers=28, hidden_size=3584, heads=28, kv_heads=4, ffn_size=18_944, vocab_size=152_064
    ),
    vision=TransformerCost.vision(layers=32, hidden_size=1280, heads=16, ffn_size=5120),
)


@pytest.mark.parametrize("packed", [False, True])
def test_each_part_is_even_until_samples_run_out(packed: bool) -> None:
    # Texts of a chat, three of four with images.
    rows = drawn_images(load_lengths("mm-mix", samples=4 * 1200, seed=0), "coyo-image", 0)
    shards = deal(rows.shape[1], 4)
    policy = Even(16_384, cost=BOTH, packed=packed)
    result = simulate(policy, [rows[:, shard] for shard in shards], identities=shards)
    assert result.missing == result.duplicates == 0
    assert result.vision_costs is not None
    begun = slice(0, result.steps * 3 // 4)
    vision = result.vision_costs[begun]
    for part in (vision, result.costs[begun] - vision, result.costs[begun]):
        assert part.max(axis=1).sum() < 1.025 * part.mean(axis=1).sum()
    assert result.vision_imbalance is not None
    assert result.vision_imbalance < 1.1
    assert result.steps_mixed is not None
    assert result.steps_mixed <= result.steps / 20
