"""What trainer and batcher tell each other.

The trainer passes everything that a batcher needs when it starts, a `LoaderSpec`, and when a pass
begins, an `EpochSpec`. Both are picklable.

The batcher tells how far a step or a round brings the epoch. The trainer cannot work this out by
itself: batches that are prefetched have been planned and collated, and not yet received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.batch.loss_scale import LossTotals
from evenstep.cost.vision_language import Ratios
from evenstep.loader.options import LoaderOptions
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch import Remaining
from evenstep.plan.length_moments import LengthMoments
from evenstep.protocol.slow_ranks import OwnPace
from evenstep.protocol.window_buffer import RoundStart

Observed = tuple[Ratios, tuple[int, int], OwnPace]
"""By a trainer: see `evenstep.protocol.agreed`."""


@dataclass(frozen=True)
class BadSample:
    """A sample that was skipped, as `skip_bad_samples` allows."""

    epoch: int
    index: Any
    """Dataset index; for an iterable dataset the sample's arrival number on its rank."""
    reason: str


@dataclass(frozen=True, eq=False)
class RoundProgress:
    """A round begins."""

    start: RoundStart
    trained: Int64Array
    """Arrival numbers of the window that were trained on before, in a resumed round."""
    worker_states: WorkerStates | None
    """States from which the workers of an iterable dataset yield the window again."""
    bad: tuple[BadSample, ...]
    """Samples skipped since the last round began."""
    update: LossTotals = field(default_factory=LossTotals)
    """What the steps count that belong to the round's first update and came before the round."""
    lengths: tuple[LengthMoments, ...] = ()
    """Of the samples of each step of the round, of all ranks."""
    same_rows: tuple[int, ...] = ()
    """Ranks that began the pass with the same rows."""


@dataclass(frozen=True, eq=False)
class StepProgress:
    """One step. It counts once the trainer receives it."""

    members: Int64Array
    """Arrival numbers of the batch, in its order."""
    new_round: RoundProgress | None = None
    """Sent with the first step of a round."""
    paces: Int64Array | None = None
    """[ranks, 4] see `evenstep.protocol.slow_ranks`; sent with the step that is delivered
    after ranks have told them."""


@dataclass(frozen=True)
class EpochEnd:
    """All steps of the pass have been delivered."""

    undelivered: int
    """Samples received and not trained on, because ``exhausted="stop"`` ended the pass."""
    bad: tuple[BadSample, ...]
    """Samples skipped since the last round began."""
    too_long: int
    """Samples of all ranks that were too long so far: see `StepInfo.too_long`."""


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
    too_long: int = 0
    """Samples that were too long before the epoch, or before its ranks last changed."""
    skipped: int = 0
    """Bad samples of this epoch that were skipped before the pass."""
