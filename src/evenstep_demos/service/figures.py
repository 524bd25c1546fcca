"""Plans and records -> the figures of a run. Pure arithmetic on [steps, ranks] arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.strategy import LoadingPlan
from evenstep_demos.service.messages import StepRecord


@dataclass(frozen=True, kw_only=True)
class ServiceRunFigures:
    """One run. Imbalance is the sum over steps of the largest, over the sum of the mean: 1.0 is
    perfect."""

    steps: int
    samples: int
    tokens: int
    """Supervised tokens of all ranks."""
    planned: Mapping[str, float]
    """By module, imbalance of the buckets' predicted cost."""
    measured: Mapping[str, float]
    """By module, imbalance of the ranks' processor seconds; "all" is that of their sum."""
    slowest: float
    """Processor seconds of the slowest rank, summed over steps and modules: the time of the run on
    processors of its own, if ranks wait for each other after each module."""
    processor: float
    """Processor seconds of all ranks."""
    wait_first: float
    """Seconds that the slowest rank waited for the first step, when nothing was ready."""
    wait_median: float
    """Seconds that the longest-waiting rank waited for a later step: the median step."""
    wait_largest: float
    """The longest of these waits."""
    seconds: float
    """Seconds of the slowest rank, over all steps."""
    first_loss: float
    last_loss: float
    """Mean over tokens of the first and of the last quarter of steps."""
    by_rank: Mapping[str, Float64Array]
    """By module, [steps, ranks] processor seconds."""

    @property
    def slowest_share(self) -> float:
        """Fraction of all processor seconds that the slowest ranks took. It compares runs of the
        same samples even if the machine was slower in one of them."""
        return self.slowest / self.processor

    def as_dict(self) -> dict[str, Any]:
        """All figures as numbers; those by step and rank as nested lists."""
        values = {**self.__dict__, "slowest_share": self.slowest_share}
        values["by_rank"] = {name: np.round(a, 5).tolist() for name, a in self.by_rank.items()}
        return values


def measure(
    plans: Sequence[LoadingPlan],
    records: Mapping[int, Sequence[StepRecord]],
    costs: Mapping[str, Float64Array],
) -> ServiceRunFigures:
    """The figures of a run.

    Args:
        plans: the plans of all steps.
        records: by rank, for the same steps.
        costs: by module, [steps, buckets] predicted.
    """
    ranks = [records[rank] for rank in sorted(records)]
    modules = list(ranks[0][0].processor)
    by_rank = {
        name: np.array([[r.processor[name] for r in rank] for rank in ranks], np.float64).T
        for name in modules
    }
    waits = np.array([[r.wait for r in rank] for rank in ranks]).max(axis=0)
    losses = np.array([[r.loss for r in rank] for rank in ranks]).sum(axis=0)
    counts = np.array([[r.supervised for r in rank] for rank in ranks]).sum(axis=0)
    quarter = max(len(plans) // 4, 1)
    together: Float64Array = np.sum(list(by_rank.values()), axis=0)
    measured = {name: largest_over_mean(each) for name, each in by_rank.items()}
    if len(modules) > 1:
        measured["all"] = largest_over_mean(together)
    return ServiceRunFigures(
        steps=len(plans),
        samples=sum(int(plan.assignment.placed.sum()) for plan in plans),
        tokens=int(counts.sum()),
        planned={name: largest_over_mean(each) for name, each in costs.items()},
        measured=measured,
        slowest=float(sum(each.max(axis=1).sum() for each in by_rank.values())),
        processor=float(together.sum()),
        wait_first=float(waits[0]),
        wait_median=float(np.median(waits[1:])) if len(waits) > 1 else 0.0,
        wait_largest=float(waits[1:].max()) if len(waits) > 1 else 0.0,
        seconds=max(sum(r.seconds for r in rank) for rank in ranks),
        first_loss=float(losses[:quarter].sum() / counts[:quarter].sum()),
        last_loss=float(losses[-quarter:].sum() / counts[-quarter:].sum()),
        by_rank=by_rank,
    )


def planned_costs(plans: Sequence[LoadingPlan]) -> Float64Array:
    """[steps, buckets] predicted cost of each bucket's samples."""
    return np.array([plan.cost_after.sum(axis=1) for plan in plans], np.float64)


def largest_over_mean(costs: Float64Array) -> float:
    """Imbalance of [steps, ranks] costs; 1.0 if all are zero."""
    mean = float(costs.mean(axis=1).sum())
    return float(costs.max(axis=1).sum()) / mean if mean else 1.0


@dataclass(frozen=True, kw_only=True)
class SourceDraws:
    """Samples drawn from each source, beside its weights. In the order of sources."""

    sources: tuple[str, ...]
    drawn: npt.NDArray[np.int64]
    """Samples."""
    expected: Float64Array
    """Samples of each step times the weights of that step, summed."""
    first: Float64Array
    """Weights of the first step."""
    last: Float64Array
    """Weights of the last step."""

    @property
    def furthest(self) -> float:
        """The largest difference, over sources, between samples drawn and expected."""
        return float(np.abs(self.drawn - self.expected).max())

    def as_dict(self) -> dict[str, Any]:
        return {
            name: {
                "drawn": int(self.drawn[i]),
                "expected": round(float(self.expected[i]), 4),
                "first_weight": float(self.first[i]),
                "last_weight": float(self.last[i]),
            }
            for i, name in enumerate(self.sources)
        }


def draws_of(plans: Sequence[LoadingPlan]) -> SourceDraws:
    """The draws of a run.

    Args:
        plans: the plans of all steps, in order.
    """
    sources = plans[0].samples.sources
    weights = np.array([[p.weights.get(name, 0.0) for name in sources] for p in plans])
    weights = weights / weights.sum(axis=1, keepdims=True)
    drawn = np.array([plan.samples[plan.carried_in :].counts() for plan in plans])
    return SourceDraws(
        sources=sources,
        drawn=drawn.sum(axis=0),
        expected=(weights * drawn.sum(axis=1, keepdims=True)).sum(axis=0),
        first=weights[0],
        last=weights[-1],
    )
