"""The rule of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: rows of patches, and a grid for each image."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from evenstep.batch.images.options import Call, Planned, Size, flat, placeholder


def qwen_vl(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    patch, merge = call.option("patch_size"), call.option("merge_size")
    frames = call.option("temporal_patch_size")
    least, most = call.side("size", "shortest_edge"), call.side("size", "longest_edge")
    smart_resize = sys.modules[type(call.processor).__module__].smart_resize
    grids = []
    for height, width in flat(sizes):
        resized = smart_resize(
            height, width, factor=patch * merge, min_pixels=least, max_pixels=most
        )
        grids.append([1, resized[0] // patch, resized[1] // patch])
    patches = sum(rows * columns for _, rows, columns in grids)
    return {
        "pixel_values": placeholder(patches, 3 * frames * patch * patch),
        "image_grid_thw": torch.tensor(grids),
    }
