"""Everything a batcher is told: when it starts, and when a pass begins. Picklable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.batch.measure import Measure
from evenstep.loader.resume.precomputed import Expected
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch.remaining import Remaining
from evenstep.plan.policy import Policy
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["EpochSpec", "LoaderSpec"]


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """What stays the same for the life of a loader."""

    dataset: Any
    iterable: bool
    policy: Policy
    rank: int
    """Data-parallel rank."""
    world_size: int
    """Data-parallel ranks."""
    context_rank: int
    """Which shard of every micro-batch is this process's."""
    seed: int
    buffer_size: int
    exhausted: str
    loss_scaling: str
    prefetch: int
    collate_fn: Callable[[list[Any]], Any]
    collate_threads: int
    measure: Measure
    chunk_size: int
    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    start_method: str | None
    persistent_workers: bool
    skip_bad_samples: int
    replay: bool
    compared: Mapping[str, Any]
    """What else must be equal on all ranks, by the name an error gives it."""


@dataclass(frozen=True, kw_only=True)
class EpochSpec:
    """One pass over the data, or over what is left of it."""

    serial: int
    """Passes begun by this loader before this one. Tells messages of an abandoned pass apart."""
    epoch: int
    share: int | None = None
    """Samples of this rank, those before `start` included; None where it is not known."""
    start: RoundStart = field(default_factory=RoundStart.empty)
    """The round to begin with."""
    received: int = 0
    """Steps of that round that the trainer has had before."""
    remaining: Remaining = field(default_factory=Remaining.everything)
    """What the rank has still to receive."""
    sources: WorkerStates | None = None
    """Where the workers of an iterable dataset go on; None for its beginning."""
    left: int | None = None
    """`Stream.digest` of what the ranks deal out among them."""
    expected: Expected | None = None
    """What the epoch was planned by, where that was done beforehand."""
    skipped: int = 0
    """Bad samples of this epoch that were skipped before."""
