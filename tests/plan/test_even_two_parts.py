"""`Even` with a cost of two parts: every sample once, limits kept, both parts nearer to equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep import Even, TransformerCost, VisionLanguageCost
from evenstep.arrays import Int64Array
from evenstep.tools.simulate import simulate

LANGUAGE = TransformerCost(layers=28, hidden_size=1536, heads=12, kv_heads=2, ffn_size=8960)
VISION = TransformerCost.vision(layers=32, hidden_size=1280, heads=16, ffn_size=5120)
COST = VisionLanguageCost(language=LANGUAGE, vision=VISION)


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
    samples=st.integers(1, 120),
    packed=st.booleans(),
    max_patches=st.sampled_from([None, 6_000]),
    text_only=st.sampled_from([0.0, 0.3, 1.0]),
    accumulate=st.sampled_from([1, 3]),
)
@settings(max_examples=40)
def test_every_sample_comes_once_in_equally_many_steps(
    seed, ranks, samples, packed, max_patches, text_only, accumulate
):
    rng = np.random.default_rng(seed)
    policy = Even(8_192, packed=packed, max_patches=max_patches, cost=COST)
    rows = [drawn(rng, samples, text_only) for _ in range(ranks)]
    # Limits and equal steps are checked in every round.
    runs = [
        simulate(policy, rows, seed=seed, buffer_size=32, accumulate=accumulate) for _ in range(2)
    ]
    for run in runs:
        assert (run.emitted, run.missing, run.duplicates) == (ranks * samples, 0, 0)
    first, again = (replace(r, plan_us_per_sample=0.0, round_us_per_sample=0.0) for r in runs)
    assert first == again


@pytest.mark.parametrize("packed", [False, True])
def test_both_parts_are_nearer_to_equal_than_by_the_cost_of_language_alone(packed):
    rng = np.random.default_rng(0)
    rows = [drawn(rng, 2_000) for _ in range(4)]
    both, language = (
        simulate(Even(16_384, packed=packed, cost=cost), rows, cost=COST)
        for cost in (COST, LANGUAGE)
    )
    assert both.imbalance < 1.03
    assert both.imbalance - 1 < (language.imbalance - 1) / 2
    assert both.vision_imbalance - 1 < (language.vision_imbalance - 1) / 2
    assert both.text_imbalance < 1.02
