"""`ServiceStep`: what a client gets with its micro-batches.

Subplans are the plans of other modules, such as an encoder, over the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.labels import is_tensor
from evenstep.mixture.sample_table import SampleId, SampleTable
from evenstep.plan.length_moments import LengthMoments
from evenstep.service.job.sample_measure import SUPERVISED


@dataclass(frozen=True, kw_only=True, eq=False)
class SubplanStep:
    """A client's part of a subplan, such as the images that its vision encoder works on."""

    micro_batches: list[Any]
    """What `Job.subplan_collate` made; None for one without samples: other clients may have some.
    """
    samples: tuple[SampleTable, ...]
    """[micro_batches]"""
    goes_to: tuple[Int64Array, ...]
    """[micro_batches] int64 [samples, 3]: the bucket, micro-batch and index in the plan where the
    module's output for each sample is needed. The clients of a bucket are ``mesh.delivery(...)``'s.
    """
    comes_from: tuple[Int64Array, ...]
    """[micro-batches of the plan] int64 [samples, 3]: the bucket, micro-batch and index in the
    subplan of each sample in this client's main micro-batches; -1 for one that the module does not
    process."""
    imbalance: float = 1.0
    imbalance_before: float = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceStep:
    """One step on one rank."""

    step: int
    rank: int
    """Global rank of the client."""
    bucket: int
    """The bucket with its samples."""
    axis: str
    """The mesh axis at which samples are distributed."""
    fetched_by: int
    """Rank that fetches this rank's micro-batches: itself, a peer that broadcasts them, or -1 if
    this rank needs none (it then fetches only its subplan, and its micro-batches are an empty
    list)."""
    loss_scales: tuple[float, ...]
    """[micro_batches] Factor of each one's loss before the backward pass: gradients, averaged over
    the ranks that have different data, are then those of one big batch. See
    `evenstep.batch.loss_scale`."""
    ranks: int
    """Number of ranks that have different data: data-parallel ones, times context-parallel ones if
    these share rows."""
    samples: tuple[SampleTable, ...]
    """[micro_batches] metadata, in the order of the micro-batch."""
    supervised: tuple[int, ...]
    """[micro_batches] supervised tokens in this rank's share."""
    total_supervised: int
    """Supervised tokens on all ranks and in all micro-batches."""
    imbalance: float
    """Costliest bucket of the step over the mean: 1.0 is perfect."""
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
        """[micro_batches] (source, shard, index) of each sample, in order."""
        return tuple(
            tuple(table.identity(row) for row in range(len(table))) for table in self.samples
        )

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of this rank's samples, by modality."""
        names = [n for t in self.samples[:1] for n in t.lengths if n != SUPERVISED]
        return {n: sum(int(table.lengths[n].sum()) for table in self.samples) for n in names}

    def to_line(self, micro_batches: Sequence[Any]) -> dict[str, Any]:
        """What `evenstep.run_log` writes of the step: this rank's part, JSON-able."""
        name = "text" if "text" in self.tokens else next(iter(self.tokens), "")
        tokens = np.concatenate([[], *(table.lengths[name] for table in self.samples)])
        moments = LengthMoments.of(tokens, [0, len(tokens)]).together()
        return {
            "step": self.step,
            "samples": len(tokens),
            "tokens": int(tokens.sum()),
            "padded_tokens": _padded_tokens(micro_batches, int(tokens.sum())),
            "imbalance": self.imbalance,
            "imbalance_before": self.imbalance_before,
            "moments": {each.name: float(getattr(moments, each.name)) for each in fields(moments)},
        }


def _padded_tokens(micro_batches: Sequence[Any], tokens: int) -> int | None:
    """Of all micro-batches; None where they hold a shard of their rows, or no tokens."""
    found: list[Any] = [b.get("input_ids") for b in micro_batches if isinstance(b, Mapping)]
    held = sum(int(ids.numel()) for ids in found if is_tensor(ids))
    return held if held >= tokens else None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepDelivery:
    """A constructor's answer to a client that asks for a step."""

    step: int
    ended: bool = False
    """Whether the mixture has ended before this step."""
    held: bool = False
    """Whether the client must ask again, as no step may start now."""
    fetched_by: int | None = None
    """Rank that fetches the client's micro-batches: itself, or a peer that broadcasts them; -1 if
    the client needs none. None if the mixture has ended."""
    micro_batches: list[Any] = field(default_factory=list)
    about: ServiceStep | None = None
    """None if the client has nothing to fetch."""
