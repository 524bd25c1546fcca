"""The time that one step takes on a pipeline of stages, and how much of it stages wait.

It is exact for the model of `evenstep.plan.pipeline`: the times of passes are given, a
stage runs one pass at a time in the order of the schedule, an output arrives after the latency
while its sender continues, and nothing else takes time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import whole_costs
from evenstep.plan.pipeline import PipelineSchedule


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """One step. Times are in the unit of the forward times."""

    makespan: float
    balanced_makespan: float
    """Makespan if every micro-batch were the mean of all."""
    busy: float
    """Time that each stage spends computing."""

    @property
    def bubble(self) -> float:
        """Share of all stages' time spent waiting, from 0 to 1. M equal micro-batches on P stages
        of plain 1F1B without latency wait (P - 1) / (M + P - 1)."""
        return 1.0 - self.busy / self.makespan if self.makespan else 0.0

    @property
    def makespan_ratio(self) -> float:
        """Makespan over `balanced_makespan`. It can be below 1: smaller micro-batches at both ends
        suit a pipeline better than equal ones."""
        return self.makespan / self.balanced_makespan if self.balanced_makespan else 1.0


def simulate_pipeline(forward: npt.ArrayLike, schedule: PipelineSchedule) -> PipelineRun:
    """Runs one step.

    Args:
        forward: [micro-batches] time of the forward pass on each stage, shared equally by its
            chunks, in the order in which they run.
        schedule: the pipeline schedule to run.

    Raises:
        ConfigurationError: the times are wrong, or the schedule cannot run that many micro-batches.
    """
    times = np.asarray(forward, np.float64)
    both = np.stack([times, np.full_like(times, times.mean())], axis=1)
    makespan, balanced = schedule.makespans(both).tolist()
    busy = float(times.sum()) * (1 + schedule.backward)
    return PipelineRun(makespan=makespan, balanced_makespan=balanced, busy=busy)


def share_micro_batches(costs: Float64Array, ranks: int) -> Int64Array:
    """Shares micro-batches out to data-parallel ranks: equally many to each, and as nearly as can
    be equal costs.

    Returns:
        [ranks, micro-batches / ranks] positions in `costs`, ascending on each rank.
    """
    rank_of = place(whole_costs(costs), ranks, equal_counts=True)
    return np.stack([np.flatnonzero(rank_of == rank) for rank in range(ranks)])
