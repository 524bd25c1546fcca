"""The rules of LLaVA-NeXT and LLaVA-OneVision: an image as a whole, and tiles of the grid that fits
it best. OneVision cuts an image only if it is alone in its sample."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from evenstep.batch.images.options import Call, NotPlanned, Planned, Size, flat, placeholder


def llava_next(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    images = flat(sizes)
    return _anyres(call, images, [True] * len(images))


def llava_onevision(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    counts = [len(row) for row in sizes if row] if nested else [1] * len(flat(sizes))
    cut = [count == 1 for count in counts for _ in range(count)]
    return {**_anyres(call, flat(sizes), cut), "batch_num_images": torch.tensor(counts)}


def _anyres(call: Call, images: Sequence[Size], cut: Sequence[bool]) -> Planned:
    """
    Args:
        cut: whether each image is cut into tiles.
    """
    if not call.option("do_pad"):
        raise NotPlanned("do_pad is off")
    side = call.side("size", "height", "shortest_edge"), call.side("size", "width", "shortest_edge")
    tile = side[0]
    if call.option("crop_size"):
        tile = call.side("crop_size", "height")
        if call.option("do_center_crop"):
            side = tile, call.side("crop_size", "width")
    grids = call.option("image_grid_pinpoints")
    best_of = sys.modules[type(call.processor).__module__].select_best_resolution
    tiles = []
    for size, is_cut in zip(images, cut):
        height, width = best_of(size, grids) if is_cut else (0, 0)
        tiles.append(1 + -(-height // tile) * -(-width // tile))
    return {
        "pixel_values": placeholder(len(images), max(tiles), 3, *side),
        "image_sizes": torch.tensor(list(images)),
    }
