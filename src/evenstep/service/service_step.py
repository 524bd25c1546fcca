"""What a client is given beside micro-batches, and what it is given of subplans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.strategy.sample_table import SampleId, SampleTable

__all__ = ["ServiceStep", "StepDelivery", "SubplanStep"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SubplanStep:
    """A client's part of a subplan, such as the images that its vision encoder works on."""

    micro_batches: list[Any]
    """What `Job.subplan_collate` made; None for one without samples, which other clients may have
    work in."""
    samples: tuple[SampleTable, ...]
    """[micro_batches]"""
    goes_to: tuple[Int64Array, ...]
    """[micro_batches] int64 [n, 3]: for each of its samples the bucket, micro-batch and place in
    the plan, where what the module makes of it is needed. The clients of a bucket are
    ``mesh.delivery(...)``'s."""
    comes_from: tuple[Int64Array, ...]
    """[micro-batches of the plan] int64 [n, 3]: for each sample of this client's main micro-batches
    the bucket, micro-batch and place in the subplan; -1 for one that is no work for the module."""
    imbalance: float = 1.0
    imbalance_before: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceStep:
    """One step on one rank."""

    step: int
    rank: int
    """Global rank of the client."""
    bucket: int
    """That its samples are in."""
    axis: str
    """At which samples are distributed."""
    fetched_by: int
    """Rank whose client fetches this rank's micro-batches: itself; or a peer that broadcasts them,
    or -1 for none, where this one fetches but its part of a subplan, and its own are an empty
    list."""
    loss_scales: tuple[float, ...]
    """[micro_batches] Multiply the loss of each with it before the backward pass: gradients,
    averaged over the ranks that have different data, are then those of one big batch. See
    `evenstep.batch.loss_scale`."""
    ranks: int
    """That have different data: data-parallel ones, times context-parallel ones where they share
    rows."""
    samples: tuple[SampleTable, ...]
    """[micro_batches] metadata, in the order of the micro-batch."""
    supervised: tuple[int, ...]
    """[micro_batches] tokens that bear loss, of this rank's share."""
    total_supervised: int
    """Of all ranks and micro-batches."""
    imbalance: float
    """Costliest bucket of the step over the mean: 1.0 is perfect."""
    imbalance_before: float
    """The same had samples been dealt as they arrived."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the sources in this step."""
    carried: int = 0
    """Samples that wait for the next step."""
    notes: tuple[str, ...] = ()
    """What the plan says turned out other than asked for."""
    subplans: Mapping[str, SubplanStep] = field(default_factory=dict)
    peers: Mapping[int, list[Any]] = field(default_factory=dict)
    """Micro-batches of other buckets that this client fetches and broadcasts, by bucket."""
    wait_seconds: float = 0.0
    """How long the trainer waited for it."""

    @property
    def sample_ids(self) -> tuple[tuple[SampleId, ...], ...]:
        """[micro_batches] [samples]"""
        return tuple(
            tuple(table.identity(row) for row in range(len(table))) for table in self.samples
        )

    @property
    def tokens(self) -> dict[str, int]:
        """By modality, of this rank's samples."""
        names = self.samples[0].lengths if self.samples else ()
        return {n: sum(int(table.lengths[n].sum()) for table in self.samples) for n in names}


@dataclass(frozen=True, kw_only=True, eq=False)
class StepDelivery:
    """What a constructor answers a client that asks for a step."""

    step: int
    ended: bool = False
    """There is no such step: the mixture has ended before it."""
    fetched_by: int | None = None
    """Rank that fetches the micro-batches that this client needs: itself, or a peer that broadcasts
    them; -1 if it needs none. None where the job has ended."""
    micro_batches: list[Any] = field(default_factory=list)
    about: ServiceStep | None = None
    """None where there is nothing for the client to fetch."""
