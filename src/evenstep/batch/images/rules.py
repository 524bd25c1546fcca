"""What an image processor returns, by a rule from the sizes of the images alone.

`rule_of` says which rule an image processor of transformers follows, by its class. The rules:

- `qwen_vl`, of Qwen2-VL, 2.5 and 3, and of GLM-4V: rows of patches, and a grid for each image.
- `pixtral`, of Pixtral and Mistral 3: images as large as the largest, and the size of each.
- `idefics`, of Idefics3 and SmolVLM: tiles of all images of a sample in one row, and for each image
  that is cut the image as a whole.
- `gemma3` and `internvl`: squares, one for each image or several.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from evenstep.errors import EvenstepError, SampleError

_DONE = ("do_convert_rgb", "do_resize", "do_rescale", "do_normalize")
"""What the rules take for granted."""


class ImageTokensError(SampleError):
    """A sample's image tokens do not match its images."""


class NotPlanned(EvenstepError):
    """A call whose result does not follow from the sizes of images by a known rule. The sample is
    made at once."""


class LargeImages(NotPlanned):
    """Images that take more memory than their pixels will."""


@dataclass(frozen=True)
class Call:
    """One call of an image processor, without the images."""

    processor: Any
    """The image processor."""
    arguments: Mapping[str, Any]
    known: list[str] = field(default_factory=lambda: ["return_tensors"])
    """Arguments that were looked at."""

    def option(self, name: str) -> Any:
        """The argument of that name, else the processor's setting."""
        self.known.append(name)
        given = self.arguments.get(name)
        return getattr(self.processor, name, None) if given is None else given

    def side(self, name: str, key: str) -> int:
        """A number of the setting `name`, which is a mapping such as ``size``."""
        sizes = self.option(name)
        value = sizes.get(key) if isinstance(sizes, Mapping) else getattr(sizes, key, None)
        if not value:
            raise NotPlanned(f"{name}={sizes} has no {key}")
        return int(value)

    def function(self, name: str) -> Any:
        """Of the module that has the processor's class."""
        return getattr(sys.modules[type(self.processor).__module__], name)

    def check(self) -> None:
        """
        Raises:
            NotPlanned: the call changes what the rule does not know of.
        """
        if self.arguments.get("return_tensors") != "pt":
            raise NotPlanned("return_tensors is not 'pt'")
        for name in _DONE:
            if not self.option(name):
                raise NotPlanned(f"{name} is off")
        changed = [
            name
            for name, value in self.arguments.items()
            if name not in self.known and value not in (None, getattr(self.processor, name, None))
        ]
        if changed:
            raise NotPlanned(f"the rule does not know of {', '.join(changed)}")


Size = tuple[int, int]
"""Height and width of an image."""
Planned = dict[str, Any]
"""What the processor returns: pixels as tensors without memory (``device="meta"``), and the other
fields with their values."""


def placeholder(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def flat(sizes: Sequence[Sequence[Size]]) -> list[Size]:
    return [size for row in sizes for size in row]


def qwen_vl(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    patch, merge = call.option("patch_size"), call.option("merge_size")
    frames = call.option("temporal_patch_size")
    least, most = call.side("size", "shortest_edge"), call.side("size", "longest_edge")
    smart_resize = call.function("smart_resize")
    options = {"factor": patch * merge, "min_pixels": least, "max_pixels": most}
    if "num_frames" in inspect.signature(smart_resize).parameters:  # of GLM-4V
        options |= {"num_frames": frames, "temporal_factor": frames}
    grids = []
    for height, width in flat(sizes):
        resized = smart_resize(height=height, width=width, **options)
        grids.append([1, resized[0] // patch, resized[1] // patch])
    patches = sum(rows * columns for _, rows, columns in grids)
    return {
        "pixel_values": placeholder(patches, 3 * frames * patch * patch),
        "image_grid_thw": torch.tensor(grids),
    }


def pixtral(call: Call, sizes: Sequence[Sequence[Size]], nested: bool) -> Planned:
    if not call.option("do_pad"):
        raise NotPlanned("do_pad is off")
    patch = call.option("patch_size")
    patches = (patch, patch)
    if not isinstance(patch, int):
        patches = call.side("patch_size", "height"), call.side("patch_size", "width")
    longest = call.side("size", "longest_edge")
    resized = call.function("get_resize_output_image_size")
    found = [
        resized(placeholder(3, *size), size=(longest, longest), patch_size=patches)
        for size in flat(sizes)
    ]
    if any(0 in size for size in found):
        raise NotPlanned("an image is too narrow to be made smaller")
    return {
        "pixel_values": placeholder(len(found), 3, *map(max, zip(*found))),
        "image_sizes": torch.tensor(found),
    }


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
    resized = call.function("get_resize_output_image_size")
    # It takes an image, of which it reads the shape.
    height, width = resized(placeholder(3, *size), resolution_max_side=longest)
    ratio = width / height
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    if width >= height:
        rows = math.ceil(int(columns * side / ratio) / side)
    else:
        columns = math.ceil(int(rows * side * ratio) / side)
    return (rows, columns) if max(rows, columns) > 1 else (0, 0)


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
    canvas = call.function("get_optimal_tiled_canvas")
    tiles = []
    for size in flat(sizes):
        columns, rows = canvas(size, side, least, most) if cuts else (1, 1)
        # And one of the image as a whole, if it is cut.
        tiles.append(columns * rows + (columns * rows > 1))
    return {
        "pixel_values": placeholder(sum(tiles), 3, *side),
        "num_patches": torch.tensor(tiles),
    }


Rule = Callable[[Call, Sequence[Sequence[Size]], bool], Planned]
"""A call, the sizes of images in one list for each row, and whether they came in such lists, not in
one list of all -> what the image processor returns."""

_RULES: dict[str, Rule] = {
    "Qwen2VLImageProcessor": qwen_vl,
    "Glm4vImageProcessor": qwen_vl,
    "PixtralImageProcessor": pixtral,
    "Idefics3ImageProcessor": idefics,
    "SmolVLMImageProcessor": idefics,
    "Gemma3ImageProcessor": gemma3,
    "GotOcr2ImageProcessor": internvl,
}
_BACKENDS = ("Pil", "Fast")


def rule_of(image_processor: Any) -> Rule | None:
    """The rule of an image processor; None if it is not known, as that of any class which is not
    transformers' own."""
    # Another thread may be preparing a row.
    kind = type(getattr(image_processor, "stands_for", image_processor))
    if kind.__module__.partition(".")[0] != "transformers":
        return None
    name = kind.__name__
    for backend in _BACKENDS:
        name = name.removesuffix(backend)
    return _RULES.get(name)
