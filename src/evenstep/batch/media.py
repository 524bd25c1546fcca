"""Fields of images, videos and audio: which they are, and how those of a group become one tensor.

Models take the media of a whole batch as one sequence, in the order of the samples: the first
dimension counts images, tiles or patches, not samples. So these fields are *joined*, end to end,
and a sample without media has none of them.

Two things differ between model families. Where images have different numbers of tiles, or sizes,
their tensors are padded with zeros to the largest of the group; another field, such as
``image_sizes``, tells the model what is real. And models that take ``pixel_attention_mask``
(Idefics and SmolVLM) want a row of tiles for every sample: one without images gets a row of zeros,
which they leave out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

import torch

from evenstep.batch.count_media import VISION_GRIDS
from evenstep.errors import CollateError, ConfigurationError

_TILE_MASK = "pixel_attention_mask"
_SOUND_MASK = "feature_attention_mask"
_SAY_WHAT_IS_REAL = ("image_sizes", _TILE_MASK)
"""Of images."""
_PIXELS = tuple(VISION_GRIDS.values())

MEDIA_FIELDS = (
    *VISION_GRIDS,
    *_PIXELS,
    "second_per_grid_ts",
    "image_sizes",
    "target_sizes",
    "batch_num_images",
    _TILE_MASK,
    "input_features",
    _SOUND_MASK,
)
"""The names that processors of transformers use."""

_ONE_IMAGE = {"pixel_values": 3, "pixel_values_videos": 4, "image_sizes": 1, _TILE_MASK: 3}
"""Dimensions of a field without the one that counts images."""

Rows = Sequence[torch.Tensor | None]


def check_media_fields(names: Collection[str]) -> None:
    if isinstance(names, str):
        raise ConfigurationError(f"media_fields={names!r} must be a tuple of names, not text")


def join_media(
    columns: Mapping[str, Rows], media: Collection[str], *, one_each: bool
) -> dict[str, torch.Tensor]:
    """The media fields of a group, each joined.

    Args:
        columns: field -> [samples] tensors; None for a sample without media.
        media: names of media fields.
        one_each: samples have one image or recording each, as classifiers take them. Then pixels
            and features are stacked like other fields, unless they come with a grid.

    Returns:
        Field -> [media of all samples, ...].

    Raises:
        CollateError: shapes that cannot be joined.
    """
    names = columns.keys() & set(media)
    if one_each:
        gridded = {VISION_GRIDS[grid] for grid in VISION_GRIDS if grid in columns}
        names &= {*VISION_GRIDS, *gridded, *(set(media) - set(MEDIA_FIELDS))}
    # Whether images lack the dimension that counts them, in all fields.
    single = any(
        _dimensions(columns[name]) == _ONE_IMAGE[name]
        for name in names & {"image_sizes", _TILE_MASK}
    )
    joined = {}
    for name, rows in columns.items():
        if name not in names:
            continue
        if name in VISION_GRIDS:
            rows = [None if row is None else row.reshape(-1, row.shape[-1]) for row in rows]
        elif name in _ONE_IMAGE and (single or _dimensions(rows) == _ONE_IMAGE[name]):
            rows = [None if row is None else row[None] for row in rows]
        joined[name] = _join(name, rows, names)
    return joined


def _dimensions(rows: Rows) -> int:
    return next(row.ndim for row in rows if row is not None)


def _join(name: str, rows: Rows, names: Set[str]) -> torch.Tensor:
    """
    Args:
        names: of all media fields of the group.
    """
    present = [row for row in rows if row is not None]
    if _TILE_MASK in names and name in (_TILE_MASK, "pixel_values"):
        empty = present[0].new_zeros((1, 0, *present[0].shape[2:]))
        present = [empty if row is None else row for row in rows]
    if len({row.ndim for row in present}) > 1 or not present[0].ndim:
        raise _unjoinable(name, present, "have different numbers of dimensions")
    shapes = [row.shape[1:] for row in present]
    if any(shape != shapes[0] for shape in shapes):
        sound = name in ("input_features", _SOUND_MASK)
        if names.isdisjoint([_SOUND_MASK] if sound else _SAY_WHAT_IS_REAL):
            raise _unjoinable(name, present, "differ in more than their first dimension")
        largest = [max(sizes) for sizes in zip(*shapes)]
        present = [padded(row, largest) for row in present]
    return torch.cat(present)


def padded(row: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A tensor with zeros behind it in all dimensions but the first."""
    if list(row.shape[1:]) == list(sizes):
        return row
    larger = row.new_zeros((row.shape[0], *sizes))
    larger[tuple(slice(size) for size in row.shape)] = row
    return larger


def _unjoinable(name: str, rows: Sequence[torch.Tensor], why: str) -> CollateError:
    shapes = ", ".join(list(dict.fromkeys(str(tuple(row.shape)) for row in rows))[:4])
    return CollateError(
        f"field {name!r} cannot be joined: shapes {shapes} {why}; make them equal in the dataset, "
        "or pass collate_fn="
    )
