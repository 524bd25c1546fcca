"""What one iteration takes on a pipeline of stages, and when each stage waits.

The recurrence is `evenstep.plan.pipeline.schedule`'s, which plans use to choose an order; here it
is taken apart into who does what when. It is exact for the model it states: times of passes are
given, a stage does one at a time in the order of the schedule, an output arrives after the latency
while its sender goes on, and nothing else takes time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.pipeline.schedule import PassGraph, PipelineSchedule

__all__ = ["PipelineRun", "simulate_pipeline"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineRun:
    """One iteration. Arrays are [passes]; times are in the unit of the forward times, from 0."""

    schedule: PipelineSchedule
    graph: PassGraph
    forward: Float64Array
    """[micro-batches, parts] time of each forward pass, in the order in which they are run."""
    order: Int64Array
    """[micro-batches] which of the micro-batches given comes in each place."""
    start: Float64Array
    end: Float64Array
    makespan: float

    @property
    def backward(self) -> npt.NDArray[np.bool_]:
        """Whether it is a backward pass."""
        return self.graph.backward

    @property
    def stage(self) -> Int64Array:
        return self.graph.stage

    @property
    def part(self) -> Int64Array:
        """Part of the model: stage s holds the parts s, s + stages, ..."""
        return self.graph.part

    @cached_property
    def micro_batch(self) -> Int64Array:
        """Number of the micro-batch, as they were given."""
        return self.order[self.graph.micro_batch]

    @cached_property
    def busy(self) -> Float64Array:
        """[stages] time that each stage computes."""
        spent = self.graph.times(self.schedule, self.forward)
        return np.bincount(self.stage, spent, minlength=self.schedule.stages).astype(np.float64)

    @property
    def bubble(self) -> float:
        """Part of all stages' time in which they wait, from 0 to 1: (P - 1) / (M + P - 1) with
        equal micro-batches on plain 1F1B without latency."""
        return 1.0 - float(self.busy.mean()) / self.makespan if self.makespan else 0.0

    @cached_property
    def balanced_makespan(self) -> float:
        """Makespan if every micro-batch were the mean of all, on each part of the model."""
        mean = self.forward.mean(axis=0)
        return _makespan(self.schedule, np.tile(mean, (len(self.forward), 1)))

    @property
    def makespan_ratio(self) -> float:
        """Makespan over `balanced_makespan`. It can be below 1: equal micro-batches are not the
        best for a pipeline, those with smaller ones at both ends are."""
        return self.makespan / self.balanced_makespan if self.balanced_makespan else 1.0


def simulate_pipeline(
    forward: npt.ArrayLike, schedule: PipelineSchedule, order: npt.ArrayLike | None = None
) -> PipelineRun:
    """Runs one iteration.

    Args:
        forward: [micro-batches] time of the forward pass on each stage, shared evenly by its
            chunks; or [micro-batches, parts] time on each part of the model.
        schedule: what is run.
        order: [micro-batches] which of them comes in each place; None takes them as they are.

    Raises:
        ConfigurationError: the times or their shape are wrong, the schedule cannot run so many
            micro-batches, or the order does not name each once.
    """
    times = schedule.forward_times(forward)
    places = np.arange(len(times)) if order is None else schedule.check_order(order, len(times))
    times = times[places]
    graph = schedule.graph(len(times))
    spent = graph.times(schedule, times)
    ends = graph.ends(spent, schedule.latency)
    end = np.array(ends)
    return PipelineRun(
        schedule=schedule,
        graph=graph,
        forward=times,
        order=places,
        start=end - spent,
        end=end,
        makespan=max(ends),
    )


def _makespan(schedule: PipelineSchedule, forward: Float64Array) -> float:
    graph = schedule.graph(len(forward))
    return max(graph.ends(graph.times(schedule, forward), schedule.latency))
