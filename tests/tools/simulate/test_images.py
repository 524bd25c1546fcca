"""Images of simulated samples."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.plan import Even
from evenstep.tools.simulate import deal, sample_lengths, simulate
from evenstep.tools.simulate.distributions import drawn_images, image_cells


@pytest.mark.parametrize(
    ("width", "height", "cells"),
    [
        (1000, 700, 36 * 25),
        (56, 56, 4),
        (14, 13, 3 * 2),  # small ones are enlarged to 4 cells or more
        (28 * 4000, 28, 2262),  # one cell high at least, as the processor has it
        (4000, 3000, 41 * 30),  # large ones shrink to 1,280 cells or fewer
    ],
)
def test_images_are_scaled_to_whole_cells(width: int, height: int, cells: int) -> None:
    assert image_cells([width], [height]).tolist() == [cells]


def test_drawn_images_add_their_tokens() -> None:
    rows = drawn_images(sample_lengths("ultrachat", 2000), "coyo-image", 0)
    lengths, patches, images, pairs = rows
    assert images.max() == 4
    assert 0.2 < (images == 0).mean() < 0.3
    assert (lengths > patches // 4).all()
    assert (pairs >= patches**2 // np.maximum(images, 1)).all()


def test_a_result_tells_the_parts_apart_where_the_cost_does() -> None:
    rows = drawn_images(sample_lengths("mm-mix", 600), "coyo-image", 0)
    shards = [rows[:, shard] for shard in deal(600, 2)]
    language = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
    tower = TransformerCost.vision(layers=2, hidden_size=64, heads=4, ffn_size=128)
    text = simulate(Even(16_384, cost=language), shards)
    assert text.images == rows[2].sum()
    assert text.patches == rows[1].sum()
    assert text.vision_imbalance is None
    both = VisionLanguageCost(language=language, vision=tower)
    result = simulate(Even(16_384, cost=both), shards)
    assert result.vision_costs is not None
    assert result.text_imbalance is not None
    largest = (result.costs - result.vision_costs).max(axis=1).sum()
    mean = (result.costs - result.vision_costs).mean(axis=1).sum()
    assert result.text_imbalance == pytest.approx(largest / mean)
    assert "vision_costs" not in result.as_dict()
    bare = simulate(Even(16_384, cost=language), [shard[0] for shard in shards])
    assert "images" not in bare.as_dict()
