"""`Even` with a cost of two parts: both are equal on all ranks, and images are on all or none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.arrays import Int64Array
from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.plan import Even, Window
from evenstep.plan.policies.even.exchanges import Goal, exchange
from evenstep.plan.policies.even.sorted_window import IMAGES, LENGTH, RunLimits, SortedWindow
from evenstep.plan.policies.even.two_part_runs import Target, take_two_part_runs
from evenstep.tools.simulate import SimulationResult, deal, simulate
from evenstep.tools.simulate.images import drawn_images
from evenstep.tools.simulate.lengths import load_lengths
from plan_world import images_of, play

COST = VisionLanguageCost(
    language=TransformerCost(
        layers=28, hidden_size=3584, heads=28, kv_heads=4, ffn_size=18_944, vocab_size=152_064
    ),
    vision=TransformerCost.vision(layers=32, hidden_size=1280, heads=16, ffn_size=5120),
)
MAX_TOKENS = 16_384


def samples(count: int, seed: int = 0) -> Int64Array:
    """[4, samples] texts of a chat, three of four with images."""
    return drawn_images(load_lengths("mm-mix", samples=count, seed=seed), "coyo-image", seed)


def run(policy: Even, ranks: int, each: int) -> SimulationResult:
    rows = samples(ranks * each)
    shards = deal(rows.shape[1], ranks)
    return simulate(policy, [rows[:, shard] for shard in shards], cost=COST, identities=shards)


@pytest.mark.parametrize("packed", [False, True])
def test_each_part_is_even_until_samples_run_out(packed: bool) -> None:
    result = run(Even(MAX_TOKENS, cost=COST, packed=packed), ranks=6, each=3000)
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


def test_padding_hardly_grows() -> None:
    both = run(Even(MAX_TOKENS, cost=COST), ranks=4, each=3000)
    text = run(Even(MAX_TOKENS, cost=COST.language), ranks=4, each=3000)
    assert both.padding < text.padding + 0.02
    assert both.steps < 1.04 * text.steps


def test_no_sample_waits_longer_than_promised() -> None:
    draw = np.random.default_rng(0)
    lengths = [np.exp(draw.normal(3, 1, 150)).astype(int).clip(1, 400).tolist() for _ in range(4)]
    patches = [draw.integers(0, 60, 150).tolist() for _ in range(4)]
    for packed in (False, True):
        policy = Even(400, max_wait=2, packed=packed, cost=COST)
        for turns in play(policy, lengths, buffer_size=40, patches=patches):
            for turn in turns.values():
                assert turn.window.ages.max() <= 2 + 40


@pytest.mark.parametrize("packed", [False, True])
def test_a_message_does_not_grow_with_the_buffer(packed: bool) -> None:
    sizes = set()
    for count in (1, 10, 1000):
        lengths, patches, images, pairs = samples(count)
        window = Window(
            lengths=lengths,
            ages=np.zeros_like(lengths),
            patches=patches,
            images=images,
            patch_pairs=pairs,
        )
        sizes.add(len(Even(MAX_TOKENS, packed=packed, cost=COST).propose(window).message))
    assert sizes == {37 if packed else 68}  # int64 each


def window_of(seed: int, count: int) -> SortedWindow:
    draw = np.random.default_rng(seed)
    patches = draw.integers(0, 60, count) * (draw.random(count) < 0.7)
    window = Window(
        lengths=draw.integers(1, draw.choice([5, 50, 300]), count),
        ages=np.sort(draw.integers(0, 14, count))[::-1].copy(),
        **images_of(patches),
    )
    return SortedWindow.of(window, COST)


@given(st.data())
def test_runs_hold_each_sample_at_most_once_and_keep_to_their_target(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 80))
    window = window_of(data.draw(st.integers(0, 2**32)), count)
    unit = float(window.costs.mean())
    wanted = st.tuples(st.just(0.0) | st.floats(0.01, 20.0), st.just(0.0) | st.floats(0.01, 3.0))
    pairs = data.draw(st.lists(wanted, min_size=1, max_size=min(count, 8)))
    targets = [
        Target(cost=unit * cost, vision=unit * vision, mean=0.3, over=float(len(pairs)))
        for cost, vision in sorted(pairs, reverse=True)
    ]
    limits = RunLimits(
        max_tokens=data.draw(st.integers(1, 2000)),
        max_patches=data.draw(st.none() | st.integers(1, 200)),
        max_images=data.draw(st.none() | st.integers(1, 12)),
        due=data.draw(st.integers(0, 20)),
    )
    oldest = data.draw(st.booleans())
    groups = take_two_part_runs(window, targets, limits, oldest=oldest)
    assert len(groups) == len(targets)
    assert groups.sizes.min() >= 1
    assert len(set(groups.members.tolist())) == len(groups.members)
    for index, target in enumerate(targets):
        group = groups.group(index)
        assert (np.diff(group) > 0).all()  # ascending, so the longest is the last
        if len(group) == 1:
            continue
        longest = int(window.numbers[LENGTH, group[-1]])
        single, each = window.costs[:, group[-1]]
        assert len(group) * longest <= limits.max_tokens
        assert single + (len(group) - 1) * each <= target.cost * (1 + 1e-8)
        assert limits.max_patches is None or window.numbers[3, group].sum() <= limits.max_patches
        assert limits.max_images is None or window.numbers[IMAGES, group].sum() <= limits.max_images


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 8))
def test_exchanges_never_lose_and_keep_what_is_to_stay(seed: int, size: int, others: int) -> None:
    draw = np.random.default_rng(seed)
    amounts = draw.integers(0, 30, (2, size + others)).astype(np.float64)
    need = draw.integers(0, 9, size + others)
    goal = Goal(amounts[:, :size].sum(axis=1) + 7, np.array([1.0, 2.0]), np.array([3.0, 2.0]))
    before = float(goal.loss(goal.amounts - amounts[:, :size].sum(axis=1)))
    limit = int(need[:size].sum()) + 3
    members, lost = exchange(
        np.arange(size),
        np.arange(size, size + others),
        amounts,
        goal,
        kept=np.array([0]),
        limited=((need, limit),),
        enough=0.0,
        most=4,
    )
    assert 0 in members
    assert len(set(members.tolist())) == size
    assert need[members].sum() <= limit
    missing = goal.amounts - amounts[:, members].sum(axis=1)
    assert lost == pytest.approx(float(goal.loss(missing)))
    assert lost <= before
