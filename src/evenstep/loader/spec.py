"""Everything a batcher is told when it starts, in one picklable value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.batch.measure import Measure
from evenstep.plan.policy import Policy

__all__ = ["EpochSpec", "LoaderSpec"]


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """What stays the same for the life of a loader."""

    dataset: Any
    iterable: bool
    policy: Policy
    rank: int
    world_size: int
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
    compared: Mapping[str, Any]
    """What else must be equal on all ranks, by the name an error gives it."""


@dataclass(frozen=True, kw_only=True)
class EpochSpec:
    """One pass over the data."""

    serial: int
    """Passes begun by this loader before this one. Tells messages of an abandoned pass apart."""
    epoch: int
