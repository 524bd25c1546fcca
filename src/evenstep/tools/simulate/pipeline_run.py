"""The time that one step takes on a pipeline of stages, and when each stage waits.

The recurrence is that of `evenstep.plan.pipeline.schedule`, which plans use to choose an order;
here it gives the start and end of every pass. It is exact for its model: the times of passes are
given, a stage runs one pass at a time in the order of the schedule, an output arrives after the
latency while its sender continues, and nothing else takes time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.pipeline.schedule import PassGraph, PipelineSchedule


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineRun:
    """One step. Arrays are [passes]; times are in the unit of the forward times, from 0."""

    schedule: PipelineSchedule
    graph: PassGraph
    forward: Float64Array
    """[micro-batches, parts] time of each forward pass, in the order in which they run."""
    order: Int64Array
    """[micro-batches] number of the micro-batch that runs at each position."""
    start: Float64Array
    end: Float64Array
    makespan: float

    @property
    def backward(self) -> npt.NDArray[np.bool_]:
        """Whether each pass is a backward pass."""
        return self.graph.backward

    @property
    def stage(self) -> Int64Array:
        return self.graph.stage

    @property
    def part(self) -> Int64Array:
        """Part of the model that each pass computes: stage s holds the parts s, s + stages, ..."""
        return self.graph.part

    @cached_property
    def micro_batch(self) -> Int64Array:
        """Number of each pass's micro-batch, as they were given."""
        return self.order[self.graph.micro_batch]

    @cached_property
    def busy(self) -> Float64Array:
        """[stages] time that each stage spends computing."""
        spent = self.graph.times(self.schedule, self.forward)
        return np.bincount(self.stage, spent, minlength=self.schedule.stages).astype(np.float64)

    @property
    def bubble(self) -> float:
        """Share of all stages' time spent waiting, from 0 to 1. M equal micro-batches on P stages
        of plain 1F1B without latency wait (P - 1) / (M + P - 1)."""
        return 1.0 - float(self.busy.mean()) / self.makespan if self.makespan else 0.0

    @cached_property
    def balanced_makespan(self) -> float:
        """Makespan if every micro-batch were the mean of all, in each part of the model."""
        mean = self.forward.mean(axis=0)
        return _makespan(self.schedule, np.tile(mean, (len(self.forward), 1)))

    @property
    def makespan_ratio(self) -> float:
        """Makespan over `balanced_makespan`. It can be below 1: smaller micro-batches at both ends
        suit a pipeline better than equal ones."""
        return self.makespan / self.balanced_makespan if self.balanced_makespan else 1.0


def simulate_pipeline(
    forward: npt.ArrayLike, schedule: PipelineSchedule, order: npt.ArrayLike | None = None
) -> PipelineRun:
    """Runs one step.

    Args:
        forward: [micro-batches] time of the forward pass on each stage, shared equally by its
            chunks; or [micro-batches, parts] time on each part of the model.
        schedule: the pipeline schedule to run.
        order: [micro-batches] which micro-batch runs at each position; None takes them as they are.

    Raises:
        ConfigurationError: the times or their shape are wrong, the schedule cannot run that many
            micro-batches, or the order does not name each once.
    """
    times = schedule.forward_times(forward)
    positions = np.arange(len(times)) if order is None else schedule.check_order(order, len(times))
    times = times[positions]
    graph = schedule.graph(len(times))
    spent = graph.times(schedule, times)
    ends = graph.ends(spent, schedule.latency)
    end = np.array(ends)
    return PipelineRun(
        schedule=schedule,
        graph=graph,
        forward=times,
        order=positions,
        start=end - spent,
        end=end,
        makespan=max(ends),
    )


def _makespan(schedule: PipelineSchedule, forward: Float64Array) -> float:
    graph = schedule.graph(len(forward))
    return max(graph.ends(graph.times(schedule, forward), schedule.latency))
