"""Everything the trainer passes to a batcher: when it starts, and when a pass begins. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.batch.loss_scale import LossTotals
from evenstep.loader.options import LoaderOptions
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch import Remaining
from evenstep.protocol.window_buffer import RoundStart


@dataclass(frozen=True, kw_only=True)
class LoaderSpec(LoaderOptions):
    """What stays the same for the life of a batcher: the options and its ranks."""

    rank: int
    """Data-parallel rank."""
    world_size: int
    """Data-parallel ranks."""
    context_rank: int
    """Context-parallel rank: which shard of every micro-batch this process gets."""
    compared: Mapping[str, Any]
    """What else must be equal on all ranks, by the name that an error uses."""


@dataclass(frozen=True, kw_only=True)
class EpochSpec:
    """One pass over the data, or over what remains of it."""

    serial: int
    """Passes that this loader began before; identifies messages of an abandoned pass."""
    epoch: int
    share: int | None = None
    """Samples of this rank, including those before `start`; None where unknown."""
    entries: int | None = None
    """Samples of the stream that the ranks share, where it is dealt out to them on demand."""
    start: RoundStart = field(default_factory=RoundStart.empty)
    """The round to begin with."""
    received: int = 0
    """Steps of that round that the trainer received before."""
    update: LossTotals = field(default_factory=LossTotals)
    """`RoundProgress.update` of that round."""
    remaining: Remaining = field(default_factory=Remaining.everything)
    """What the rank still has to receive."""
    worker_states: WorkerStates | None = None
    """Where the workers of an iterable dataset resume; None for its beginning."""
    stream_digest: int | None = None
    """`Stream.digest` of what the ranks share in this pass."""
    skipped: int = 0
    """Bad samples of this epoch that were skipped before the pass."""
