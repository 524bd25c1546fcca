"""`Even` with a cost of two parts: both are equal on all ranks, and images are on all or none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.arrays import Int64Array
from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.plan import Even
from evenstep.tools.simulate import SimulationResult, deal, simulate
from evenstep.tools.simulate.distributions import drawn_images
from evenstep.tools.simulate.lengths import load_lengths

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
    result = run(Even(MAX_TOKENS, cost=COST, packed=packed), ranks=4, each=2000)
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


def drawn(rng: np.random.Generator, samples: int, text_only: float = 0.3) -> Int64Array:
    """[4, samples] lengths, patches, images and patch pairs: up to three images each, whose tokens
    are a quarter of their patches."""
    images = rng.integers(1, 4, samples) * (rng.random(samples) > text_only)
    sizes = np.minimum(rng.lognormal(5.5, 1.0, (samples, 3)).astype(np.int64) * 4 + 16, 4096)
    sizes *= np.arange(3) < images[:, None]
    text = np.minimum(rng.lognormal(5, 0.8, samples).astype(np.int64) + 8, 2000)
    lengths = text + sizes.sum(axis=1) // 4
    return np.array([lengths, sizes.sum(axis=1), images, (sizes**2).sum(axis=1)], np.int64)


@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 5),
    samples=st.integers(1, 60),
    packed=st.booleans(),
    max_patches=st.sampled_from([None, 6_000]),
    text_only=st.sampled_from([0.0, 0.3, 1.0]),
    accumulate=st.sampled_from([1, 3]),
    max_wait=st.sampled_from([None, 1]),
)
@settings(max_examples=15)
def test_every_sample_comes_once_in_equally_many_steps(
    seed, ranks, samples, packed, max_patches, text_only, accumulate, max_wait
):
    rng = np.random.default_rng(seed)
    policy = Even(8_192, packed=packed, max_patches=max_patches, max_wait=max_wait, cost=COST)
    rows = [drawn(rng, samples, text_only) for _ in range(ranks)]
    # Limits and equal steps are checked in every round.
    runs = [
        simulate(policy, rows, seed=seed, buffer_size=32, accumulate=accumulate) for _ in range(2)
    ]
    for run in runs:
        assert (run.emitted, run.missing, run.duplicates) == (ranks * samples, 0, 0)
    first, again = (replace(r, plan_us_per_sample=0.0) for r in runs)
    assert first == again
