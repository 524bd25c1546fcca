"""From a stored size and text to pixels and tokens. Source Loaders call this, so it needs no torch.

A picture is cut into cells of 28 x 28 pixels, each of which is one token of the backbone and four
patches of 14 x 14 pixels for the encoder. Patches lie cell by cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["CELLS", "PATCH", "PICTURE", "cells_of", "pictured", "supervised"]

PICTURE = 256
"""The token in whose place the embedding of a cell goes; those below it are bytes."""

PATCH = 14 * 14 * 3
"""Numbers that a patch has."""

CELLS = 144
"""Of a picture, at most: larger ones are scaled down."""

_SIDE = 28


def cells_of(width: int, height: int, most: int = CELLS) -> tuple[int, int]:
    """(rows, columns) of cells that a picture of so many pixels has, at least one each: as many as
    cover it, or, of one that has more than `most`, about as many in the same proportion."""
    rows, columns = math.ceil(height / _SIDE), math.ceil(width / _SIDE)
    if rows * columns > most:
        scale = math.sqrt(most / (rows * columns))
        rows, columns = max(1, int(rows * scale)), max(1, int(columns * scale))
    return min(rows, most), min(columns, most)


def pictured(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with random pixels, of a ``size`` that is (width, height) or None, a ``text`` and a
    ``seed``. Placeholders of its cells come first, and bear no loss."""
    text = np.frombuffer(row["text"].encode(), np.uint8).astype(np.int32)
    if row["size"] is None:
        return {
            "input_ids": text,
            "labels": text,
            "image_grid_thw": None,
            "pixel_values": None,
        }
    rows, columns = cells_of(*row["size"])
    cells = rows * columns
    draw = np.random.default_rng(row["seed"])
    return {
        "input_ids": np.concatenate([np.full(cells, PICTURE, np.int32), text]),
        "labels": np.concatenate([np.full(cells, -100, np.int32), text]),
        "image_grid_thw": np.array([[1, 2 * rows, 2 * columns]]),
        "pixel_values": draw.integers(0, 256, (4 * cells, PATCH), np.uint8),
    }


def supervised(sample: Mapping[str, Any]) -> int:
    """Tokens that bear loss in a packed row, where the first of a document predicts nothing."""
    labels: Sequence[int] = sample["labels"][1:]
    return int((np.asarray(labels) >= 0).sum())
