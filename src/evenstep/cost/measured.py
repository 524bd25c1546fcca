"""`MeasuredCost`, and the two ratios that a run measures and all its ranks agree on.

A ratio is what a pair of tokens costs over what a token does, or a patch over a token. Ranks agree
on both as integers, (pair, patch) in `RATIO_UNIT`, so that all have the same bits. (0, 0) is what
no one has measured.

What a patch costs is that of one in a small image: how an image's pairs of patches compare with its
patches stays what the tower's cost says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenstep.cost.models import UNKNOWN_MODEL, Cost, FittedCost
from evenstep.cost.vision_language import VisionLanguageCost, language_part

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
