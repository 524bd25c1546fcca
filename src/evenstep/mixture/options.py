"""`Options`: the arguments of a `Mixer`, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.curriculum import LengthCurriculum
from evenstep.mixture.sample_table import SampleTable
from evenstep.mixture.schedules import FeedbackSchedule, Past, PerStep, Schedule
from evenstep.mixture.source_queues import UNKNOWN, Admission
from evenstep.mixture.stop import ALL_REPEATED, REPEAT
from evenstep.mixture.weights import check_names, check_weights
from evenstep.plan.argument_checks import check_at_least, check_given, check_one_of

_BY = ("samples", "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """`Mixer` documents them and their errors."""

    sources: tuple[str, ...]
    schedule: Schedule
    samples_per_step: int | None
    tokens_per_step: int | None
    by: str
    stop: str
    """One of the rules of `evenstep.mixture.stop`."""
    curriculum: LengthCurriculum | None
    modalities: Sequence[str] | None
    sizes: Mapping[str, int | None]
    seed: int

    def __post_init__(self) -> None:
        check_given(seed=self.seed)
        check_at_least(0, seed=self.seed)
        if self.seed >= 1 << 64:
            raise ConfigurationError(f"seed={self.seed} must have at most 64 bits")
        doubled = sorted(name for name, count in Counter(self.sources).items() if count > 1)
        if not self.sources or doubled:
            raise ConfigurationError(
                f"sources must have different names; given twice: {', '.join(doubled)}"
                if doubled
                else "sources=[] is empty; give their names"
            )
        samples, tokens = self.samples_per_step, self.tokens_per_step
        if (samples is None) == (tokens is None):
            raise ConfigurationError(
                f"samples_per_step={samples} and tokens_per_step={tokens}: give exactly one "
                "of them, the amount that a step draws"
            )
        check_at_least(1, samples_per_step=samples, tokens_per_step=tokens)
        check_one_of(_BY, by=self.by)
        if self.curriculum is not None and self.stop == ALL_REPEATED:
            raise ConfigurationError(
                f"stop={self.stop!r} ends when each source was read once, but under a curriculum "
                "samples of one pass may come after those of the next; choose all_exhausted or "
                "repeat"
            )
        self._check_sizes()
        self._check_schedule()

    def _check_sizes(self) -> None:
        check_names(self.sizes, self.sources, "sizes")
        for name, size in self.sizes.items():
            check_at_least(1, **{f"size of source {name!r}": size})
        unknown = [name for name in self.sources if self.sizes.get(name) is None]
        if self.stop == ALL_REPEATED and unknown:
            raise ConfigurationError(
                f'stop="{ALL_REPEATED}" needs the size of each source, and that of '
                f"{unknown[0]!r} is unknown; give sizes=, or choose another rule"
            )

    def _check_schedule(self) -> None:
        peaks = self.schedule.peaks()
        if peaks is not None:
            check_names(peaks, self.sources, "weights")
        if isinstance(self.schedule, PerStep):
            self.weights(self.schedule, 0, Past())
        elif isinstance(self.schedule, FeedbackSchedule):
            check_names(self.schedule.initial, self.sources, "initial weights of FeedbackSchedule")

    # Consequences

    @property
    def repeats(self) -> bool:
        """Whether sources begin again after their end."""
        return self.stop in (REPEAT, ALL_REPEATED)

    def weights(self, schedule: Schedule, step: int, past: Past) -> dict[str, float]:
        """Weights of a step, checked."""
        of = f"weights of step {step:,}"
        weights = check_weights(schedule.weights(step, past), of)
        check_names(weights, self.sources, of)
        return weights

    def admission(self, step: int) -> Admission:
        """Which samples a step may draw."""
        if self.curriculum is None:
            return Admission(tokens=self.tokens)
        limit, waiting = self.curriculum.limit(step), self.curriculum.max_waiting
        return Admission(tokens=self.tokens, limit=limit, max_waiting=waiting)

    def left_of_pass(self, cursors: Int64Array) -> Int64Array:
        """[sources] samples from these positions to the end of the first pass, or `UNKNOWN`."""
        known = [self.sizes.get(name) for name in self.sources]
        sizes = np.array([UNKNOWN if size is None else size for size in known], np.int64)
        return np.where(sizes == UNKNOWN, UNKNOWN, np.maximum(sizes - cursors, 0))

    def tokens(self, table: SampleTable) -> Int64Array:
        """[samples] tokens of each."""
        names = table.lengths if self.modalities is None else self.modalities
        return table.tokens(name for name in names if name in table.lengths)

    def named(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Values by name of source, without zeros.

        Args:
            values: [sources]
        """
        return {name: value for name, value in zip(self.sources, values.tolist()) if value}
