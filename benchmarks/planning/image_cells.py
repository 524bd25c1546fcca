"""Images of samples, counted by the rule of Qwen2-VL: an image is scaled to whole cells of 28 x 28
pixels, at least 4 and at most 1,280; a cell is one token of the language model, and 4 patches of
the vision tower."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.rng import RandomStream, generator
from evenstep.tools.simulate.distributions import DISTRIBUTIONS

CELL_PIXELS = 28
PATCHES_PER_CELL = 4
FEWEST_CELLS, MOST_CELLS = 4, 1280
WITHOUT_IMAGES, MOST_IMAGES = 0.25, 4
"""Share of the drawn samples that have no image; the others have 1 to 4, equally often."""


def image_cells(widths: npt.ArrayLike, heights: npt.ArrayLike) -> Int64Array:
    """Cells of images of given pixels, one token each.

    An image of 1,000 x 700 pixels becomes 36 x 25 cells.
    """
    sides = np.array([widths, heights], np.float64)
    cells = np.maximum(np.rint(sides / CELL_PIXELS), 1)
    area = sides.prod(axis=0) / CELL_PIXELS**2
    count = cells.prod(axis=0)
    large, small = count > MOST_CELLS, count < FEWEST_CELLS
    scaled = np.maximum(np.floor(sides / CELL_PIXELS / np.sqrt(area / MOST_CELLS)), 1)
    cells = np.where(large, scaled, cells)
    scaled = np.ceil(sides / CELL_PIXELS * np.sqrt(FEWEST_CELLS / area))
    cells = np.where(small, scaled, cells)
    found: Int64Array = cells.prod(axis=0).astype(np.int64)
    return found


def rows_of_images(patches: Int64Array, counts: Int64Array) -> Int64Array:
    """[3, samples] patches, images and patch pairs.

    Args:
        patches: [images] of each image, sample after sample.
        counts: [samples] images of each sample.
    """
    of = np.repeat(np.arange(len(counts)), counts)
    rows = np.zeros((3, len(counts)), np.int64)
    rows[1] = counts
    np.add.at(rows[0], of, patches)
    np.add.at(rows[2], of, patches**2)
    return rows


def drawn_images(texts: Int64Array, distribution: str, seed: int) -> Int64Array:
    """[4, samples] lengths, patches, images and patch pairs of texts to which images are added.

    Args:
        texts: [samples] tokens.
        distribution: name of that of tokens per image.
    """
    random = generator(seed, RandomStream.SIMULATED_IMAGES)
    counts = random.integers(1, MOST_IMAGES, len(texts), endpoint=True)
    counts[random.random(len(texts)) < WITHOUT_IMAGES] = 0
    levels: Float64Array = random.random(int(counts.sum()))
    cells = np.clip(DISTRIBUTIONS[distribution].lengths(levels), FEWEST_CELLS, MOST_CELLS)
    rows = rows_of_images(cells * PATCHES_PER_CELL, counts)
    return np.concatenate([(texts + rows[0] // PATCHES_PER_CELL)[None], rows])
