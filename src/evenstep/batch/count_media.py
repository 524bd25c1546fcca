"""The images, videos and sounds of a sample, counted from the fields that processors make.

What a vision tower computes follows from two sums over a sample's media: of their patches, and of
the squares of these, since each image, and each frame of a video, attends to itself alone.

Where pixels are made later, a `MediaShape` stands in their field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.batch.labels import as_array, field_of, is_tensor
from evenstep.errors import SampleError

VISION_GRIDS = {"image_grid_thw": "pixel_values", "video_grid_thw": "pixel_values_videos"}
"""Grid field -> pixel field, as processors of the Qwen-VL kind name them: the grid has one row
(time, height, width) per image or video, the pixels one row per patch."""

_SOUNDS = "input_features"
_FIELDS = frozenset([*VISION_GRIDS, *VISION_GRIDS.values(), _SOUNDS])


class MediaCounts(NamedTuple):
    """What is counted of a sample's media."""

    patches: int = 0
    """Vision patches."""
    images: int = 0
    """Images, videos and sounds, one each."""
    patch_pairs: int = 0
    """Sum over images and frames of their squared patches."""

    def plus(self, other: MediaCounts) -> MediaCounts:
        return MediaCounts(*(a + b for a, b in zip(self, other)))


def media_of(sample: Any) -> MediaCounts:
    """The media of a sample.

    Counted from ``image_grid_thw`` and ``video_grid_thw`` (rows of time, height, width) where they
    exist. Otherwise from ``pixel_values`` and ``pixel_values_videos``: a 2-D tensor has one patch
    in each row, and is one image; of other tensors each image (3-D: 1, 4-D: images) counts as one
    patch, or each of its tiles (5-D: images x tiles), since their patch size is unknown. Lists are
    summed. ``input_features`` (mel x frames of each sound) have no patches.

    Raises:
        SampleError: a grid whose rows are not triples.
    """
    counts = MediaCounts()
    if isinstance(sample, dict) and _FIELDS.isdisjoint(sample):
        return counts
    for grid_name, pixel_name in VISION_GRIDS.items():
        grid = field_of(sample, grid_name)
        if grid is None:
            counts = counts.plus(_of_pixels(field_of(sample, pixel_name)))
            continue
        frames, high, wide = _grid_rows(grid_name, grid).T
        each = high * wide
        pairs = int((frames * each**2).sum())
        counts = counts.plus(MediaCounts(int((frames * each).sum()), len(frames), pairs))
    sounds = _of_pixels(field_of(sample, _SOUNDS), dimensions=2).images
    return counts.plus(MediaCounts(images=sounds)) if sounds else counts


def patches_of(sample: Any) -> int:
    """Vision patches of a sample: the default `patches_fn`, as `media_of` counts them.

    Raises:
        SampleError: a grid whose rows are not triples.
    """
    return media_of(sample).patches


def patches_of_each(sample: Any) -> list[int]:
    """Vision patches of each image of a sample, then of each video, as their grids say.

    Raises:
        SampleError: a grid whose rows are not triples, or pixels without one.
    """
    return [patches for patches, _ in _cuts(sample)]


def nth_image(sample: Any, number: int) -> dict[str, Any]:
    """The pixels and the grid of one image of a sample, in the order of `patches_of_each`.

    Raises:
        SampleError: the sample has no such image, or pixels that do not match its grids.
    """
    cuts = _cuts(sample)
    if number >= len(cuts):
        raise SampleError(
            f"image {number} of a sample that has {len(cuts)}: let the function of its modality "
            "return one number for each row of the grids, as patches_of_each does"
        )
    found = {}
    for name, part in cuts[number][1].items():
        value = field_of(sample, name)
        if value is None or len(value) < part.stop:
            raise SampleError(
                f"{name} is {describe(value)}, too short for the grids of the sample's images; "
                "return them as the processor does, one row for each patch"
            )
        # A copy: a view of a tensor would be sent with all that it is a view of.
        found[name] = value[part].clone() if is_tensor(value) else value[part]
    return found


def _cuts(sample: Any) -> list[tuple[int, dict[str, slice]]]:
    """Of each image, its patches, and the rows of each field that are its own."""
    found: list[tuple[int, dict[str, slice]]] = []
    for grid_name, pixel_name in VISION_GRIDS.items():
        grid = field_of(sample, grid_name)
        if grid is None:
            if field_of(sample, pixel_name) is not None:
                raise SampleError(
                    f"{pixel_name} without {grid_name}, by which images are told apart; leave "
                    "one_by_one out for other processors than those of the Qwen-VL kind"
                )
            continue
        end = 0
        for row, patches in enumerate(_grid_rows(grid_name, grid).prod(axis=1).tolist()):
            begin, end = end, end + patches
            found.append((patches, {pixel_name: slice(begin, end), grid_name: slice(row, row + 1)}))
    return found


def _grid_rows(name: str, grid: Any) -> npt.NDArray[np.int64]:
    """[images, 3] time, height and width.

    Raises:
        SampleError: rows that are not triples.
    """
    rows = as_array(grid)
    if rows.size % 3 or (rows.size and rows.shape[-1] != 3):
        raise SampleError(
            f"{name} is {describe(grid)}, not rows of (time, height, width); pass "
            "length_fn=evenstep.SampleCounts(patches=...), a function that counts them"
        )
    return rows.reshape(-1, 3).astype(np.int64)


def media_of_patches(patches: Any, sample: Any) -> MediaCounts:
    """From what a `patches_fn` returned: the patches of each image, or all of a sample.

    All of a sample are shared out evenly over the images that `media_of` finds, or are of one.
    """
    if isinstance(patches, (list, tuple, np.ndarray)) or (is_tensor(patches) and patches.ndim):
        each = as_array(patches).astype(np.int64)
        return MediaCounts(int(each.sum()), len(each), int((each**2).sum()))
    count = int(patches)
    images = max(media_of(sample).images, int(count > 0))
    return MediaCounts(count, images, count**2 // max(images, 1))


def describe(value: Any) -> str:
    """A value in an error: its type, and its shape if it is an array."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return f"a {type(value).__name__}"


def _of_pixels(pixels: Any, dimensions: int = 3) -> MediaCounts:
    """
    Args:
        dimensions: of one image.
    """
    if pixels is None:
        return MediaCounts()
    if isinstance(pixels, (list, tuple)):
        each = [_of_pixels(image, dimensions) for image in pixels]
        return MediaCounts(*map(sum, zip(*each)))
    shape: Sequence[int] = tuple(getattr(pixels, "shape", ()))
    if len(shape) < dimensions:
        rows = int(shape[0]) if len(shape) == 2 else 0
        return MediaCounts(rows, int(rows > 0), rows**2)
    outer = shape[: len(shape) - dimensions]
    patches = int(np.prod(outer, dtype=np.int64))
    return MediaCounts(patches, int(outer[0]) if outer else 1, patches)


LATE = "evenstep_images"
"""Field of a sample with what such tensors are made of: see `evenstep.batch.images`."""


def image_bytes(image: Any) -> int:
    """Memory that an image of PIL takes."""
    encoded = getattr(image, "encoded", None)
    if encoded is not None:
        return int(encoded.nbytes)
    return int(image.width) * int(image.height) * len(image.getbands())


@dataclass(frozen=True)
class MediaShape:
    """Stands in a sample for a tensor that is made once the sample's group is known."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)
