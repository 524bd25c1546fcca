"""`VisionLanguageCost`: a cost of two parts, which ranks balance apart.

A vision-language model runs a vision tower over patches, then a language model over tokens, those
that stand for images among them. All ranks meet in between where parameters are sharded, so a step
is even only if each part is.

The language model computes a padded or packed group. The tower computes the images of a group as
they are: padding adds nothing, and each attends to itself alone, so its part is a sum over samples.

`MeasuredCost` has two ratios that a run measures and all its ranks agree on: what a pair of tokens
costs over what a token does, and a patch over a token. Ranks agree on both as integers, (pair,
patch) in `RATIO_UNIT`, so that all have the same bits. (0, 0) is what no one has measured. What a
patch costs is that of one in a small image: how an image's pairs of patches compare with its
patches stays what the tower's cost says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost.models import UNKNOWN_MODEL, Cost, FittedCost, TransformerCost
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


RATIO_UNIT = 2.0**-36
"""Tokens: fine enough for pairs, and a patch may cost 131,072."""
Ratios = tuple[int, int]
UNMEASURED: Ratios = (0, 0)


@dataclass(frozen=True, kw_only=True)
class MeasuredCost(FittedCost):
    """What the loader measures while it trains, in tokens of short samples; at first what is given
    here. For `Even`, alone or as the language of a `VisionLanguageCost`, whose vision is then
    measured too: see `evenstep.loader.step_clock`."""

    per_group: float = 0.0
    per_token: float = 1.0
    per_pair: float = UNKNOWN_MODEL.per_pair


def is_measured(cost: Cost) -> bool:
    return isinstance(language_part(cost), MeasuredCost)


def at_ratios(cost: Cost, ratios: Ratios) -> Cost:
    """A measured cost with what was measured; any other stays as it is.

    The vision tower keeps its cost, so that what it cost in steps before can be compared. A cost of
    one part gets a tower, whose patches cost 1, if patches cost anything.
    """
    if not is_measured(cost) or ratios == UNMEASURED:
        return cost
    pair, patch = (ratio * RATIO_UNIT for ratio in ratios)
    if not patch and not isinstance(cost, VisionLanguageCost):
        return MeasuredCost(per_pair=pair)
    vision = FittedCost(per_group=0.0, per_token=1.0, per_pair=0.0)
    if not isinstance(cost, VisionLanguageCost):
        cost = VisionLanguageCost(language=cost, vision=vision)
    token = cost.per_patch / max(patch, RATIO_UNIT)
    return replace(cost, language=MeasuredCost(per_token=token, per_pair=pair * token))
