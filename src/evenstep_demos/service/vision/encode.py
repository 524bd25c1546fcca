"""Turns a stored size and text into pixels and tokens. Source Loaders call this, without torch.

A picture is cut into cells of 28 x 28 pixels, each of which is one token of the backbone and four
patches of 14 x 14 pixels for the encoder. Patches lie cell by cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PICTURE = 256
"""The token that the embedding of a cell replaces; tokens below it are bytes."""

PATCH = 14 * 14 * 3
"""Numbers in a patch."""

CELLS = 144
"""Cells of a picture at most: larger ones are scaled down."""

_SIDE = 28


def cells_of(width: int, height: int, most: int = CELLS) -> tuple[int, int]:
    """(rows, columns) of the cells that cover a picture, at least one each. A picture of more than
    `most` cells is scaled down to about as many, in the same proportion."""
    rows, columns = math.ceil(height / _SIDE), math.ceil(width / _SIDE)
    if rows * columns > most:
        scale = math.sqrt(most / (rows * columns))
        rows, columns = max(1, int(rows * scale)), max(1, int(columns * scale))
    return min(rows, most), min(columns, most)


def pictured(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with random pixels, of a ``size`` that is (width, height) or None, a ``text`` and a
    ``seed``. Placeholders of its cells come first, and are not supervised."""
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
    """Supervised tokens in a packed row, where the first of a document is not predicted."""
    labels: Sequence[int] = sample["labels"][1:]
    return int((np.asarray(labels) >= 0).sum())
