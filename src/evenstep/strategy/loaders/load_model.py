"""`LoadModel`: what a loader needs for the parts of sources that it has.

A loader reads and sends all of its samples itself. It transforms them itself, too, or hands them to
workers and takes them back. So beyond some load more workers do not help, and the sources must be
given to more loaders. Sources take memory in each loader that has a part of them, and their
transforms in each process that calls them.

Demand is how many samples steps to come draw of each source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.schedules import Past, Schedule, check_names, check_weights, in_order
from evenstep.plan.value_checks import check_at_least


def weights_ahead(schedule: Schedule, sources: Sequence[str], steps: Iterable[int]) -> Float64Array:
    """[steps, sources] weights at steps to come, each row with a sum of 1. A `FeedbackSchedule`,
    whose weights are not known in advance, is taken to keep those that it has.

    Raises:
        ConfigurationError: weights that `Mixer` refuses, too.
    """
    rows = []
    for step in steps:
        weights = check_weights(schedule.weights(step, Past()), f"weights of step {step:,}")
        check_names(weights, sources, f"weights of step {step:,}")
        rows.append(in_order(weights, sources))
    return np.array(rows, np.float64).reshape(-1, len(sources))


def draws_of(
    weights: Float64Array,
    tokens: Float64Array,
    *,
    samples_per_step: int | None = None,
    tokens_per_step: int | None = None,
    by: str = "samples",
) -> Float64Array:
    """[steps, sources] samples that a step draws of each source, on average.

    Args:
        weights: [steps, sources]
        tokens: [sources] of a sample, on average.
        samples_per_step, tokens_per_step, by: see `Mixer`.
    """
    check_at_least(1, samples_per_step=samples_per_step, tokens_per_step=tokens_per_step)
    length: Float64Array = np.maximum(tokens, 1.0)
    shares: Float64Array = weights / length if by == "tokens" else weights
    shares = shares / shares.sum(axis=1, keepdims=True)
    samples: Float64Array = np.full(len(shares), samples_per_step or 0, np.float64)  # [steps]
    if tokens_per_step is not None:
        samples = tokens_per_step / (shares @ length)
    return shares * samples[:, None]


def telling_rows(draws: Float64Array, at_most: int = 32) -> Float64Array:
    """[times, sources] rows of `draws` that are enough to plan by: those in which a source is drawn
    from most. Of more than `at_most`, the last is replaced by the largest draws of each source that
    the others do not have."""
    rows: Float64Array = np.unique(draws, axis=0)
    peaks = np.unique(rows.argmax(axis=0))
    if len(peaks) <= at_most:
        # Between the peaks, others that are spread evenly.
        spread = np.linspace(0, len(rows) - 1, at_most - len(peaks)).astype(np.int64)
        kept: Float64Array = rows[np.union1d(peaks, spread)]
        return kept
    chosen = rows[peaks[: at_most - 1]]
    rest = np.where(rows.max(axis=0) > chosen.max(axis=0), rows.max(axis=0), 0.0)
    return np.vstack([chosen, rest])


@dataclass(frozen=True, kw_only=True)
class SourceProfile:
    """Seconds and bytes of a source. Seconds are of one processor and, unless they say otherwise,
    means over samples, as a step's time is a sum of them."""

    source: str
    samples: int
    """Samples that were measured."""
    read_seconds: float
    """To read a stored sample. Always the loader's own work."""
    prepare_seconds: float
    """To transform and measure it: the loader's work, or that of its workers."""
    prepare_high: float = 0.0
    """The 90th percentile."""
    send_seconds: float = 0.0
    """Of the loader, to send a prepared sample."""
    handover_seconds: float = 0.0
    """Of the loader, to give a stored sample to a worker and take back the prepared one."""
    file_bytes: int = 0
    """Memory of the open source: index, decoded rows, connections."""
    transform: str = ""
    """Sources with the same text share what `transform_bytes` counts."""
    transform_bytes: int = 0
    """Memory that the transform keeps once it was called, in each process that calls it."""
    sample_bytes: int = 0
    """Memory of a prepared sample."""
    tokens: float = 1.0
    """Length of a sample."""
    random_access: bool = False
    """Whether loaders that share the source share the reading, too. Otherwise each reads all of it
    and drops what others own."""


MOST_PARTS = 64
"""Loaders that share a source, at most."""
_STEPS_AHEAD = 2  # of which samples are prepared ahead, at least
ROUNDING = 1 + 1e-9
"""Within which limits are kept to."""


@dataclass(frozen=True, kw_only=True)
class LoaderLimits:
    """What a layout must keep to.

    Args:
        step_seconds: of the trainer's step, in which the loaders must prepare one.
        memory: bytes of a loader and its workers.
        workers: processes of a loader that transform, at most.
        cores: of all loaders together; None is as many as they need.
        busy: share of its time that a process may have work.
        process_bytes: memory of a loader or a worker before it opens a source.
        buffer_bytes: bytes of prepared samples that a loader may hold where there is room.
        staged_steps: steps whose samples wait for constructors.
    """

    step_seconds: float
    memory: int
    workers: int = 8
    cores: float | None = None
    busy: float = 0.8
    process_bytes: int = 100 << 20
    buffer_bytes: int = 256 << 20
    staged_steps: int = 4

    def __post_init__(self) -> None:
        check_at_least(1, memory=self.memory, buffer_bytes=self.buffer_bytes)
        check_at_least(0, workers=self.workers, process_bytes=self.process_bytes)
        check_at_least(0, staged_steps=self.staged_steps)
        if not (math.isfinite(self.step_seconds) and self.step_seconds > 0):
            raise ConfigurationError(f"step_seconds={self.step_seconds!r} must be above 0")

    @property
    def seconds(self) -> float:
        """Work that a process may have in a step."""
        return self.step_seconds * self.busy


class Piece(NamedTuple):
    """One of `parts` equal parts of a source."""

    source: int
    parts: int


class Needs(NamedTuple):
    """What loaders need."""

    workers: Int64Array
    """[loaders] processes beside the loader; 0 if it transforms by itself."""
    seconds: Float64Array
    """[loaders] of the busiest process in the step that takes it longest."""
    memory: Float64Array
    """[loaders] bytes, workers included."""
    fits: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """[loaders] whether all limits are kept."""


class LoadModel:
    """Vectors of what parts of sources take, which add up to those of a loader."""

    def __init__(
        self, profiles: Sequence[SourceProfile], draws: Float64Array, limits: LoaderLimits
    ) -> None:
        """
        Args:
            draws: [times, sources] samples that a step draws, at some times of the run.
        """
        self._profiles = tuple(profiles)
        self.sources = tuple(profile.source for profile in profiles)
        self.limits = limits
        self.draws = np.asarray(draws, np.float64)
        if self.draws.ndim != 2 or self.draws.shape[1] != len(profiles) or not len(self.draws):
            raise ConfigurationError(
                f"draws of shape {self.draws.shape} must be [times, sources], and there are "
                f"{len(profiles)} profiles"
            )

        def column(name: str) -> Float64Array:
            return np.array([getattr(profile, name) for profile in profiles], np.float64)

        self.read, self.prepare = column("read_seconds"), column("prepare_seconds")
        self.send, self.handover = column("send_seconds"), column("handover_seconds")
        self.file_bytes = column("file_bytes")
        self.transform_bytes, shared = _transform_bytes(profiles)
        self.process_bytes = limits.process_bytes + shared
        """Memory of a process before it opens a source, with transforms that sources share."""
        self.sample_bytes = column("sample_bytes")
        self._random_access = column("random_access") > 0
        peak = self.draws.max(axis=0)  # [sources]
        slow = column("prepare_high") / limits.step_seconds
        steps = np.maximum(_STEPS_AHEAD, 1 + np.ceil(slow))
        # A source that is drawn from holds at least a sample.
        self.buffers = np.where(peak > 0, np.maximum(peak * steps, 1.0), 0.0) * self.sample_bytes
        self.staged = peak * limits.staged_steps * self.sample_bytes

    def at(self, draws: Float64Array) -> LoadModel:
        """The same for other draws."""
        return LoadModel(self._profiles, draws, self.limits)

    def vectors(self, pieces: Sequence[Piece]) -> Float64Array:
        """[pieces, 3 + 3 * times] bytes of files and staged samples, of transforms and of buffers;
        by time, seconds of reading and sending, of handing over, and of preparing."""
        source = np.array([piece.source for piece in pieces], np.int64)
        parts = np.array([piece.parts for piece in pieces], np.float64)
        drawn = self.draws[:, source].T / parts[:, None]  # [pieces, times]
        read = np.where(self._random_access[source], 1.0, parts) * self.read[source]
        return np.hstack(
            [
                (self.file_bytes[source] + self.staged[source] / parts)[:, None],
                self.transform_bytes[source][:, None],
                (self.buffers[source] / parts)[:, None],
                drawn * (read + self.send[source])[:, None],
                drawn * self.handover[source][:, None],
                drawn * self.prepare[source][:, None],
            ]
        )

    def needs(self, vectors: Float64Array) -> Needs:
        """What each loader needs, with as few workers as keep up; where none do, as many as may be.

        Args:
            vectors: [loaders, 3 + 3 * times] sums over the parts that each has.
        """
        limits, cap = self.limits, self.limits.seconds * ROUNDING
        held, transforms, buffers = vectors[:, :3].T
        own, handover, prepare = _by_time(vectors)
        alone = (own + prepare).max(axis=1)
        memory = self.process_bytes + held + transforms + buffers
        room = limits.memory * ROUNDING
        fits = (alone <= cap) & (memory <= room)
        workers = np.zeros(len(vectors), np.int64)
        seconds, total = alone, memory
        if limits.workers:
            work = prepare.max(axis=1)
            wanted = np.ceil(work / cap).clip(1, limits.workers)
            hers = np.maximum((own + handover).max(axis=1), work / wanted)
            memory = self.process_bytes + held + buffers
            memory = memory + wanted * (self.process_bytes + transforms)
            helped = ~fits & (alone > cap) & (hers < alone)
            workers = np.where(helped, wanted, 0).astype(np.int64)
            seconds, total = np.where(helped, hers, alone), np.where(helped, memory, total)
            fits = np.where(helped, (hers <= cap) & (memory <= room), fits)
        return Needs(workers, seconds, total, fits)

    def fewest_parts(self, source: int) -> int | None:
        """Loaders that must share a source at least; None if none may be many enough."""
        parts = np.arange(1, MOST_PARTS + 1)
        fits = self.needs(self.vectors([Piece(source, int(n)) for n in parts])).fits
        return int(parts[fits.argmax()]) if fits.any() else None

    def cores(self, vectors: Float64Array, workers: Int64Array) -> float:
        """Processors that preparing a step in time takes.

        Args:
            vectors: [loaders, 3 + 3 * times] as for `needs`.
            workers: [loaders]
        """
        own, handover, prepare = _by_time(vectors)
        work = own + prepare + handover * (workers > 0)[:, None]  # [loaders, times]
        return float(work.sum(axis=0).max() / self.limits.seconds)


def _by_time(vectors: Float64Array) -> Float64Array:
    """[3, loaders, times] seconds of reading and sending, of handing over, and of preparing."""
    times = (vectors.shape[1] - 3) // 3
    split: Float64Array = vectors[:, 3:].reshape(len(vectors), 3, times).transpose(1, 0, 2)
    return split


def _transform_bytes(profiles: Sequence[SourceProfile]) -> tuple[Float64Array, int]:
    """[sources] memory of transforms that no other source has; and of all others, which are taken
    to be in every process, each once."""
    uses: dict[str, list[int]] = {}
    for profile in profiles:
        uses.setdefault(profile.transform, []).append(profile.transform_bytes)
    shared = {text: max(sizes) for text, sizes in uses.items() if text and len(sizes) > 1}
    own = [0 if each.transform in shared else each.transform_bytes for each in profiles]
    return np.array(own, np.float64), sum(shared.values())
