"""The images of simulated samples: from a file with their sizes, or drawn from a distribution.

Images are counted by the rule of Qwen2-VL: an image is scaled to whole cells of 28 x 28 pixels, at
least 4 and at most 1,280; a cell is one token of the language model, and 4 patches of the vision
tower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.rng import RandomStream, generator
from evenstep.tools.simulate.distributions import DISTRIBUTIONS
from evenstep.tools.simulate.lengths import (
    PARQUET,
    chosen_samples,
    existing_file,
    load_lengths,
    open_parquet,
)

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


def load_samples(
    lengths: str, images: str, *, samples: int | None = None, seed: int = 0
) -> Int64Array:
    """Lengths and images of samples.

    Args:
        lengths: as `load_lengths` takes it.
        images: ``FILE.parquet:COLUMN``, a list of the patches of each image; or
            ``FILE.parquet:WIDTH,HEIGHT``, two lists of their pixels. A row for each length, which
            counts the tokens of images, too. Or a name in `DISTRIBUTIONS`, of tokens per image:
            then images are drawn, and their tokens added to the lengths.
        samples, seed: as `load_lengths` takes them.

    Returns:
        [4, samples] int64 lengths, patches, images and patch pairs.

    Raises:
        ConfigurationError: as `load_lengths`; or no such file or column of images, other types in
            them, or not as many rows as lengths.
    """
    if images in DISTRIBUTIONS:
        drawn = load_lengths(lengths, samples=samples, seed=seed)
        return drawn_images(drawn, images, seed)
    all_lengths = load_lengths(lengths, samples=samples if lengths in DISTRIBUTIONS else None)
    rows = _read_images(images)
    if rows.shape[1] != len(all_lengths):
        raise ConfigurationError(
            f"{images} has {rows.shape[1]:,} rows, and {lengths} {len(all_lengths):,} lengths; "
            "give columns of one file"
        )
    table = np.concatenate([all_lengths[None], rows])
    return table[:, chosen_samples(table.shape[1], samples, seed)]


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


def _read_images(spec: str) -> Int64Array:
    """[3, samples] patches, images and patch pairs."""
    parquet = PARQUET.fullmatch(spec)
    names = (parquet["column"] or "").split(",") if parquet else []
    if parquet is None or not 1 <= len(names) <= 2 or not all(names):
        raise ConfigurationError(
            f"unknown images {spec!r}: give FILE.parquet:COLUMN, a list of the patches of each "
            "image, FILE.parquet:WIDTH,HEIGHT, lists of their pixels, or one of "
            f"{', '.join(DISTRIBUTIONS)}"
        )
    path = existing_file(parquet["path"])
    lists = []
    with open_parquet(path) as file:
        import pyarrow as arrow

        for name in names:
            if name not in file.schema_arrow.names:
                raise ConfigurationError(
                    f"{path} has no column {name!r}; it has {', '.join(file.schema_arrow.names)}"
                )
            kind = file.schema_arrow.field(name).type
            if not arrow.types.is_list(kind) or not arrow.types.is_integer(kind.value_type):
                raise ConfigurationError(
                    f"{path}:{name} holds {kind}; it must be lists of integers, one of each image"
                )
            column = file.read(columns=[name]).column(name).combine_chunks()
            counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            lists.append((column.flatten().to_numpy(zero_copy_only=False), counts.astype(np.int64)))
    if len(lists) == 1:
        return rows_of_images(lists[0][0].astype(np.int64), lists[0][1])
    (widths, counts), (heights, others) = lists
    if not np.array_equal(counts, others):
        raise ConfigurationError(f"{spec} has more widths than heights, or fewer, in some row")
    return rows_of_images(image_cells(widths, heights) * PATCHES_PER_CELL, counts)
