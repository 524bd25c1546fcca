"""`Even` with a cost of two parts: both are equal on all ranks, and images are on all or none."""

from __future__ import annotations

import pytest

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
