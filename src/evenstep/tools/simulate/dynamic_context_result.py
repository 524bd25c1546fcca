"""The figures of plans that divide ranks into groups, each defined in its docstring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """One step by one plan, in units of cost. Arrays are [micro-batches]."""

    compute: Float64Array
    """What the slowest rank computes, in whole tiles."""
    mean: Float64Array
    """What ranks compute on average."""
    time: Float64Array
    """What the slowest rank takes, with the exchange that it waits for."""
    least: Float64Array
    """What it takes at least, however the ranks are divided: the mean, or the longest document by
    itself on the ranks that suit it best."""
    documents: int
    ranks_of_documents: int
    """Ranks of each document's group, added up."""
    most_ranks: int
    tokens: float
    """Tokens of a rank in all micro-batches, on average."""
    most_tokens: int
    """Tokens of the rank with most, in any micro-batch."""


@dataclass(frozen=True, kw_only=True)
class DynamicContextResult:
    """The same steps by dynamic groups, by fixed groups, and by length. Lists are [steps]."""

    dynamic: Sequence[PlanFigures]
    by_length: Sequence[PlanFigures]
    """`powers_of_two_by_length`; empty if it was not asked for."""
    fixed: Mapping[int, Sequence[PlanFigures]]
    """`fixed_groups` by their ranks, where all documents fit."""
    plan_ms: Float64Array = field(repr=False, compare=False)
    """[steps] milliseconds of processor time to plan dynamically."""
    bounds: Float64Array
    """[steps] `least_step` of each."""

    def as_dict(self) -> dict[str, Any]:
        """Figures of dynamic groups by name; below ``by_length`` and ``fixed`` those of the others,
        and how much longer the best of them takes than dynamic groups."""
        own = _summary(self.dynamic, self.bounds)
        fixed = {str(size): _summary(each, self.bounds) for size, each in self.fixed.items()}
        values = {
            "steps": len(self.dynamic),
            **own,
            "plan_ms": float(np.median(self.plan_ms)),
            "plan_ms_max": float(self.plan_ms.max()),
            "fixed": fixed,
        }
        if self.by_length:
            values["by_length"] = _summary(self.by_length, self.bounds)
            values["speedup_over_by_length"] = (
                values["by_length"]["step_time_over_bound"] / own["step_time_over_bound"]
            )
        if fixed:
            best = min(fixed, key=lambda size: float(fixed[size]["step_time_over_bound"]))
            values["best_fixed"] = int(best)
            values["speedup_over_best_fixed"] = (
                fixed[best]["step_time_over_bound"] / own["step_time_over_bound"]
            )
        return values


def _summary(steps: Sequence[PlanFigures], bounds: Float64Array) -> dict[str, Any]:
    compute = np.concatenate([each.compute for each in steps])
    mean = np.concatenate([each.mean for each in steps])
    taken = np.concatenate([each.time for each in steps])
    documents = sum(each.documents for each in steps)
    least = np.concatenate([each.least for each in steps])
    busy = mean > 0
    over = compute[busy] / mean[busy]
    return {
        # Sum over micro-batches of the slowest rank's work, over the sum of the mean.
        "imbalance": float(compute.sum() / mean.sum()),
        "imbalance_worst": float(over.max()),
        # The same of that micro-batch at least, as its longest document is waited for.
        "imbalance_worst_bound": float((least[busy] / mean[busy])[over.argmax()]),
        "ranks_per_document_mean": sum(each.ranks_of_documents for each in steps) / documents,
        "ranks_per_document_max": max(each.most_ranks for each in steps),
        # Time that ranks wait for exchange, where attention does not hide it.
        "communication_share": float(1 - compute.sum() / taken.sum()),
        "tokens_per_rank_mean": sum(each.tokens for each in steps) / len(taken),
        "tokens_per_rank_max": max(each.most_tokens for each in steps),
        "micro_batches": len(taken) / len(steps),
        "step_time_over_bound": float(taken.sum() / bounds.sum()),
    }
