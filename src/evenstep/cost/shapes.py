"""`GroupShapes`: integer columns with one row per group, all that its cost depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import ConfigurationError


@dataclass(frozen=True)
class GroupShapes:
    """The shape of each group: all that its cost depends on. Fields are int64 arrays [groups]."""

    samples: Int64Array
    tokens: Int64Array
    longest: Int64Array
    squares: Int64Array
    """Sum of squared lengths: what packed self-attention computes."""
    patches: Int64Array | None = None
    """Vision patches; None, as in the next two, where they are not counted."""
    images: Int64Array | None = None
    """Images, and videos and sounds, one each."""
    patch_pairs: Int64Array | None = None
    """Sum over images of their squared patches: what a vision tower's self-attention computes."""

    @classmethod
    def measure(
        cls,
        lengths: npt.ArrayLike,
        offsets: npt.ArrayLike,
        vision: Int64Array | None = None,
    ) -> GroupShapes:
        """Shapes of groups stored one after the other.

        Args:
            lengths: [samples] tokens of each sample, group after group.
            offsets: [groups + 1] group g is ``lengths[offsets[g]:offsets[g + 1]]``; never empty.
            vision: [3, samples] patches, images and patch pairs of each sample, if counted.
        """
        flat = np.asarray(lengths, dtype=np.int64)
        bounds = np.asarray(offsets, dtype=np.int64)
        if len(bounds) <= 1:
            empty = np.empty(0, dtype=np.int64)
            return cls(*[empty] * (4 if vision is None else 7))
        starts = bounds[:-1]
        return cls(
            samples=np.diff(bounds),
            tokens=np.add.reduceat(flat, starts),
            longest=np.maximum.reduceat(flat, starts),
            squares=np.add.reduceat(flat * flat, starts),
            **({} if vision is None else dict(zip(_VISION, np.add.reduceat(vision, starts, 1)))),
        )

    @classmethod
    def of_equals(cls, samples: int, lengths: Int64Array) -> GroupShapes:
        """Shapes of groups of `samples` equally long samples, one group for each length."""
        count = np.full(len(lengths), samples, np.int64)
        return cls(count, count * lengths, lengths, count * lengths * lengths)

    @property
    def padded(self) -> Int64Array:
        """[groups] tokens after padding every sample to the longest of its group."""
        return self.samples * self.longest

    def __len__(self) -> int:
        return len(self.samples)


_VISION = ("patches", "images", "patch_pairs")


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
            value = getattr(self, name)
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
