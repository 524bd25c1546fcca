"""`VisionLanguageCost`: a cost of two parts, which ranks balance apart.

A vision-language model runs a vision tower over patches, then a language model over tokens, those
that stand for images among them. All ranks meet in between where parameters are sharded, so a step
is even only if each part is.

The language model computes a padded or packed group. The tower computes the images of a group as
they are: padding adds nothing, and each attends to itself alone, so its part is a sum over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost.models import Cost, FittedCost, TransformerCost
from evenstep.cost.shapes import GroupShapes
from evenstep.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class VisionLanguageCost:
    """Cost of the language model and of the vision tower, in one unit. For many models
    ``cost_of(model, vision=True)`` makes it.

    An image of 1,024 patches has 1,024² pairs with full attention, and 1,024 x 64 where attention
    is in windows of 64 patches.
    """

    language: Cost
    """Of tokens."""
    vision: TransformerCost | FittedCost
    """Of patches: `TransformerCost.vision`, or measured by ``evenstep profile``, where lengths are
    patches of an image. What a measured one costs per group is left out: no choice of samples
    changes it."""
    window: int | None = None
    """Patches that attend to each other, where the tower's attention is in windows: an image then
    has so many pairs for each patch. None where it is over a whole image."""

    def __post_init__(self) -> None:
        if not isinstance(self.vision, (TransformerCost, FittedCost)):
            raise ConfigurationError(
                f"vision={self.vision!r} must be TransformerCost.vision(...) or a FittedCost"
            )
        if self.window is not None and self.window < 1:
            raise ConfigurationError(f"window={self.window} must be at least 1")

    @property
    def per_patch(self) -> float:
        """Cost of a patch in a small image; where patches cost nothing, of a pair of them."""
        return self.vision.per_token or self.vision.per_pair

    def of_patches(self, patches: npt.ArrayLike, patch_pairs: npt.ArrayLike) -> Float64Array:
        """Cost of the vision tower, of the same shape as its arguments."""
        counted = np.asarray(patches, np.float64)
        pairs = np.asarray(patch_pairs, np.float64)
        if self.window is not None:
            pairs = counted * self.window
        cost: Float64Array = self.vision.per_token * counted + self.vision.per_pair * pairs
        return cost

    def of_vision(self, shapes: GroupShapes) -> Float64Array:
        """[groups] cost of the vision tower; 0 where patches are not counted."""
        if shapes.patches is None or shapes.patch_pairs is None:
            return np.zeros(len(shapes))
        return self.of_patches(shapes.patches, shapes.patch_pairs)

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        return self.language(shapes, packed=packed) + self.of_vision(shapes)


def language_part(cost: Cost) -> Cost:
    """What of a cost is of tokens: all of a cost of one part."""
    return cost.language if isinstance(cost, VisionLanguageCost) else cost


def vision_part(cost: Cost, shapes: GroupShapes) -> Float64Array:
    """[groups] what of a cost is of the vision tower; 0 for a cost of one part."""
    if isinstance(cost, VisionLanguageCost):
        return cost.of_vision(shapes)
    return np.zeros(len(shapes))
