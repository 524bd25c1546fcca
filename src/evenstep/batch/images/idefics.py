"""The rule of Idefics3 and SmolVLM: tiles of all images of a sample in one row, and for each image
that is cut the image as a whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import torch

from evenstep.batch.images.options import Call, NotPlanned, Planned, Size, placeholder


def idefics(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    if not call.option("do_pad"):
        raise NotPlanned("do_pad is off")
    side = call.side("max_image_size", "longest_edge")
    grids = [[_grid(call, size, side) for size in row] for row in sizes]
    tiles = max(sum(rows * columns + 1 for rows, columns in row) for row in grids)
    planned: Planned = {
        "pixel_values": placeholder(len(sizes), tiles, 3, side, side),
        "pixel_attention_mask": placeholder(len(sizes), tiles, side, side, dtype=torch.int64),
    }
    if call.option("return_row_col_info"):
        for place, name in enumerate(("rows", "cols")):
            planned[name] = [[grid[place] for grid in row] for row in grids]
    return planned


def _grid(call: Call, size: Size, side: int) -> Size:
    """Rows and columns of tiles; none of an image that is one tile."""
    longest = call.side("size", "longest_edge")
    if not call.option("do_image_splitting"):
        return 0, 0
    resized = sys.modules[type(call.processor).__module__].get_resize_output_image_size
    # It takes an image, of which it reads the shape.
    height, width = resized(placeholder(3, *size), resolution_max_side=longest)
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    rows, columns = height // side, width // side
    return (rows, columns) if max(rows, columns) > 1 else (0, 0)
