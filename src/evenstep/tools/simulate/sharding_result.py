"""The figures of sharded sequences, each defined in its docstring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One sharding method over all sequences. Arrays are [sequences]."""

    pair_imbalance: Float64Array
    """Query-key pairs of the rank with most, over the mean of the ranks."""
    tile_imbalance: Float64Array
    """Pairs that the slowest rank computes in whole tiles, over the mean of the pairs needed."""
    latency: Float64Array
    """Predicted time of the slowest rank, in the model's unit."""
    fragments_per_rank: Float64Array
    """Fragments of a rank, mean over ranks."""
    tokens_least: Int64Array
    """Tokens of the rank with fewest."""
    tokens_most: Int64Array
    """Tokens of the rank with most."""
    padding: Float64Array
    """1 - tokens of the sequence / (ranks x `tokens_most`)."""


@dataclass(frozen=True, kw_only=True)
class ShardingResult:
    """The figures of the same sequences under each sharding method."""

    ranks: int
    tile: int
    figures: Mapping[str, Figures]
    """Figures of each method, and of "adaptive"."""
    oracle: Float64Array
    """[sequences] least tile imbalance of all plans."""
    chosen: Mapping[str, int]
    """Sequences for which adaptive sharding took each method."""
    plan_ms: Float64Array = field(repr=False, compare=False)
    """[sequences] milliseconds of processor time to make the plans that adaptive sharding chooses
    from, and to choose."""

    def as_dict(self) -> dict[str, Any]:
        """Means over sequences by name, and maxima under names that end in ``_max``."""
        least = np.min([each.latency for each in self.figures.values()], axis=0)
        values: dict[str, Any] = {
            "sequences": len(self.oracle),
            "cp": self.ranks,
            "tile": self.tile,
        }
        for name, each in self.figures.items():
            key = name.replace("-", "_")
            values |= {
                f"pair_imbalance_{key}": float(each.pair_imbalance.mean()),
                f"pair_imbalance_{key}_max": float(each.pair_imbalance.max()),
                f"tile_imbalance_{key}": float(each.tile_imbalance.mean()),
                f"tile_imbalance_{key}_max": float(each.tile_imbalance.max()),
                f"latency_over_best_{key}": float((each.latency / least).mean()),
                f"fragments_per_rank_{key}": float(each.fragments_per_rank.mean()),
                f"chosen_{key}": self.chosen.get(name, 0),
            }
        del values["chosen_adaptive"]
        every = self.figures.values()
        return {
            **values,
            "tile_imbalance_oracle": float(self.oracle.mean()),
            "tile_imbalance_oracle_max": float(self.oracle.max()),
            "tokens_per_rank_min": min(int(each.tokens_least.min()) for each in every),
            "tokens_per_rank_max": max(int(each.tokens_most.max()) for each in every),
            "padding": max(float(each.padding.max()) for each in every),
            "plan_ms": float(self.plan_ms.mean()),
            "plan_ms_median": float(np.median(self.plan_ms)),
        }
