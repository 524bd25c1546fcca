"""The rules of Gemma 3 and InternVL: squares, one for each image or several."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from evenstep.batch.images.options import Call, NotPlanned, Planned, Size, flat, placeholder


def gemma3(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    names = ("min_crop_size", "max_num_crops", "min_ratio_to_activate")
    options = {f"pan_and_scan_{name}": call.option(f"pan_and_scan_{name}") for name in names}
    crops = [0] * len(flat(sizes))
    if call.option("do_pan_and_scan"):
        cut = getattr(call.processor, "pan_and_scan", None)
        if cut is None:
            raise NotPlanned(f"{type(call.processor).__name__} has no pan_and_scan for one image")
        # It takes images, and returns parts of them: these have a shape, and no memory.
        empty = [np.broadcast_to(np.uint8(0), (3, *size)) for size in flat(sizes)]
        crops = [len(cut(image=image, **options)) for image in empty]
    side = call.side("size", "height"), call.side("size", "width")
    return {
        "pixel_values": placeholder(len(crops) + sum(crops), 3, *side),
        "num_crops": torch.tensor(crops),
    }


def internvl(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    side = call.side("size", "height"), call.side("size", "width")
    least, most = call.option("min_patches"), call.option("max_patches")
    cuts = call.option("crop_to_patches") and most > 1
    canvas = sys.modules[type(call.processor).__module__].get_optimal_tiled_canvas
    tiles = []
    for size in flat(sizes):
        columns, rows = canvas(size, side, least, most) if cuts else (1, 1)
        # And one of the image as a whole, if it is cut.
        tiles.append(columns * rows + (columns * rows > 1))
    return {
        "pixel_values": placeholder(sum(tiles), 3, *side),
        "num_patches": torch.tensor(tiles),
    }
