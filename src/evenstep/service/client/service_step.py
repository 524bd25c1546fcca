"""`ServiceStep`: what a client gets with its micro-batches.

Subplans are the plans of other modules, such as an encoder, over the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import SourceCounts, StepInfo
from evenstep.errors import MeshChangedError
from evenstep.mixture.sample_table import SampleId, SampleTable


@dataclass(frozen=True, kw_only=True, eq=False)
class SubplanStep:
    """A client's part of a subplan, such as the images that its vision encoder works on."""

    micro_batches: list[Any]
    """What `Job.subplan_collate` made; None for one without samples: other clients may have some.
    """
    samples: tuple[SampleTable, ...]
    """[micro_batches] Of a subplan that deals images one by one, with a row for each image, in
    which `lengths` are the image's."""
    goes_to: tuple[Int64Array, ...]
    """[micro_batches] int64 [samples, 3]: the bucket, micro-batch and index in the plan where the
    module's output for each sample, or image, is needed."""
    comes_from: tuple[Int64Array, ...]
    """[micro-batches of the plan] int64 [samples, 3]: the bucket, micro-batch and index in the
    subplan of each sample in this client's main micro-batches; -1 for one that the module does not
    process. If images are dealt one by one, [images, 3]: those of its first sample in order, then
    those of the next."""
    made_by: Int64Array
    """[buckets of the subplan, clients] global ranks of those that work on each bucket."""
    needed_by: Int64Array
    """[buckets of the plan, clients] global ranks of those that need each bucket's outputs: peers
    along TP, and along CP where they share rows, in the first stage of a pipeline."""
    imbalance: float = 1.0
    imbalance_before: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceStep(StepInfo):
    """A `StepInfo` of the service: `rank` is the bucket with the client's samples, `world_size` the
    number of buckets, and `indices` are (source, shard, index)."""

    client: int
    """Global rank of the client."""
    axis: str
    """The mesh axis at which samples are distributed."""
    fetched_by: int
    """Rank that fetches this client's micro-batches: itself, a peer that broadcasts them, or -1 if
    this client needs none (it then fetches only its subplan, and its micro-batches are an empty
    list)."""
    tables: tuple[SampleTable, ...]
    """[micro_batches] metadata, in the order of the micro-batch."""
    by_source: Int64Array
    """[2, 2 x sources] samples of each source, then tokens of each: of this rank, and of all."""
    imbalance_before: float
    """The imbalance if samples were assigned in the order of arrival."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of the sources in this step."""
    carried: int = 0
    """Samples that wait for the next step."""
    notes: tuple[str, ...] = ()
    """Where the plan differs from what the strategy asked for."""
    subplans: Mapping[str, SubplanStep] = field(default_factory=dict)
    peers: Mapping[int, list[Any]] = field(default_factory=dict)
    """Micro-batches of other buckets that this client fetches and broadcasts, by bucket."""
    wait_seconds: float = 0.0
    """How long the trainer waited for the step."""

    @property
    def sample_ids(self) -> tuple[tuple[SampleId, ...], ...]:
        """[micro_batches] (source, shard, index) of each sample, in order: `indices`, cut."""
        identities = iter(self.indices or ())
        return tuple(tuple(islice(identities, len(table))) for table in self.tables)

    @property
    def sources(self) -> dict[str, SourceCounts]:
        return self._by_source(self.by_source[0])

    @property
    def global_sources(self) -> dict[str, SourceCounts]:
        return self._by_source(self.by_source[1])

    def to_line(self) -> dict[str, Any]:
        return {**super().to_line(), "imbalance_before": self.imbalance_before}


@dataclass(frozen=True, kw_only=True, eq=False)
class StepDelivery:
    """A constructor's answer to a client that asks for a step."""

    step: int
    ended: bool = False
    """Whether the mixture has ended before this step."""
    held: str = ""
    """Why no step may start now, and the client must ask again; empty if one may."""
    fetched_by: int | None = None
    """Rank that fetches the client's micro-batches: itself, or a peer that broadcasts them; -1 if
    the client needs none. None if the mixture has ended."""
    micro_batches: list[Any] = field(default_factory=list)
    about: ServiceStep | None = None
    """None if the client has nothing to fetch."""


def mesh_changed(rank: int, step: int, end: int) -> MeshChangedError:
    """The error of a client that comes to a step after its mesh has ended."""
    again = f"steps {end} to {step - 1}" if step > end + 1 else f"step {end}"
    return MeshChangedError(
        f"the mesh of the job has changed at step {end}, and rank {rank} comes to step {step} as a "
        "client of the mesh before; "
        + (f"{again}, which it has taken, come again on the new mesh; " if step > end else "")
        + "make a new client"
    )
