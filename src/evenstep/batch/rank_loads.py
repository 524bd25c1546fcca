"""`RankLoads`: what each rank computes before it waits for the others, in a step or an update."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from evenstep.arrays import Float64Array

if TYPE_CHECKING:  # the protocol is more than a process that makes batches needs
    from evenstep.protocol.receipts import StepTotals


@dataclass(frozen=True, kw_only=True, eq=False)
class RankLoads:
    """Float64 arrays [ranks]. Loads of steps after each other add up."""

    tokens: Float64Array
    """As computed: with padding."""
    pairs: Float64Array
    """Of tokens: rows x longest² in padded groups, the sum of squared lengths in packed ones. Of
    several padded micro-batches, as if they were alike."""
    patches: Float64Array
    groups: Float64Array
    cost: Float64Array
    text_cost: Float64Array
    vision_cost: Float64Array

    @classmethod
    def of(cls, totals: StepTotals, *, packed: bool, groups: int = 1) -> RankLoads:
        """Of one step.

        Args:
            groups: micro-batches of the step on each rank.
        """
        tokens = totals.padded_tokens.astype(np.float64)
        longest = totals.length_mean if packed else tokens / np.maximum(totals.samples, 1)
        return cls(
            tokens=tokens,
            pairs=tokens * longest,
            patches=totals.patches.astype(np.float64),
            groups=np.full(len(tokens), float(groups)),
            cost=totals.cost,
            text_cost=totals.text_cost,
            vision_cost=totals.vision_cost,
        )

    def __add__(self, other: RankLoads) -> RankLoads:
        return RankLoads(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )
