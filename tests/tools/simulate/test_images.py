"""Images of simulated samples."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from evenstep.cost import TransformerCost, VisionLanguageCost
from evenstep.errors import ConfigurationError
from evenstep.plan import Even
from evenstep.tools.simulate import deal, load_samples, simulate
from evenstep.tools.simulate.images import image_cells

REAL = Path(os.environ.get("EVENSTEP_DATA", ""), "mm_interleaved_docs.parquet")


def save(folder: Path, **columns: object) -> str:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder / "samples.parquet"
    parquet.write_table(arrow.table(columns), path)
    return str(path)


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


def test_pixels_and_patches_of_a_file_are_counted_by_sample(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        tokens=[30, 40, 50],
        width=[[56, 56], [], [84]],
        height=[[56, 84], [], [56]],
        patches=[[16, 24], None, [24]],
    )
    expected = [[30, 40, 50], [40, 0, 24], [2, 0, 1], [16**2 + 24**2, 0, 24**2]]
    assert load_samples(f"{path}:tokens", f"{path}:width,height").tolist() == expected
    assert load_samples(f"{path}:tokens", f"{path}:patches").tolist() == expected
    some = load_samples(f"{path}:tokens", f"{path}:patches", samples=2, seed=3)
    assert all(column in np.array(expected).T.tolist() for column in some.T.tolist())


def test_drawn_images_add_their_tokens() -> None:
    rows = load_samples("ultrachat", "coyo-image", samples=2000)
    lengths, patches, images, pairs = rows
    assert images.max() == 4
    assert 0.2 < (images == 0).mean() < 0.3
    assert (lengths > patches // 4).all()
    assert (pairs >= patches**2 // np.maximum(images, 1)).all()


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("nowhere", "unknown images 'nowhere'"),
        ("{path}:patch", "no column 'patch'"),
        ("{path}:tokens", "must be lists of integers"),
        ("{path}:patches,short", "more widths than heights"),
        ("{other}:patches", "has 1 rows, and .* 2 lengths"),
    ],
)
def test_wrong_images_are_refused(tmp_path: Path, images: str, said: str) -> None:
    path = save(tmp_path, tokens=[3, 4], patches=[[1, 2], [3]], short=[[1], [3]])
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other", patches=[[1]])
    with pytest.raises(ConfigurationError, match=said):
        load_samples(f"{path}:tokens", images.format(path=path, other=other))


def test_a_result_tells_the_parts_apart_where_the_cost_does() -> None:
    rows = load_samples("mm-mix", "coyo-image", samples=600)
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
