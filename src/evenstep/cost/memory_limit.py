"""`MemoryLimit`: what may be collated together at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.cost.shapes import GroupShapes
from evenstep.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Limits of one group, whatever it costs."""

    max_tokens: int
    """Tokens as laid out in memory: samples x longest when padded, real tokens when packed."""
    max_samples: int | None = None
    max_patches: int | None = None
    """Vision patches of a group."""
    max_images: int | None = None
    """Images of a group, counted as `GroupShapes.images`."""
    packed: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_samples", "max_patches", "max_images"):
            value: Any = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value} must be at least 1")

    def fits(self, shapes: GroupShapes, patches: Int64Array | None = None) -> BoolArray:
        """[groups] bool.

        Args:
            patches: [groups] patches, where `shapes` does not have them.

        Raises:
            ConfigurationError: `max_patches` or `max_images` without what it limits.
        """
        fits: BoolArray = (shapes.tokens if self.packed else shapes.padded) <= self.max_tokens
        if self.max_samples is not None:
            fits &= shapes.samples <= self.max_samples
        counted = {
            "patches": shapes.patches if patches is None else np.asarray(patches),
            "images": shapes.images,
        }
        for name, held in counted.items():
            limit = getattr(self, f"max_{name}")
            if limit is None:
                continue
            if held is None:
                raise ConfigurationError(f"max_{name}={limit} needs the {name} of each group")
            fits &= held <= limit
        return fits
