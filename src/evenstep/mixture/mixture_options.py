"""`Options`: the arguments of a `Mixer`, checked; when it ends, and how long samples may be.

When a mixture ends, and whether a source that has ended begins again:

- `FIRST_EXHAUSTED`: the mixture ends with the last sample of the first source that has no more.
- `ALL_EXHAUSTED`: a source that has ended is drawn no more, and the others divide its share; the
  mixture ends with the last sample of the last one. Each sample comes once.
- `ALL_REPEATED`: a source that has ended begins again, and the mixture ends when each has been read
  once.
- `REPEAT`: a source that has ended begins again, and the mixture never ends.

Under a `LengthCurriculum` no sample is longer than a limit that grows with the steps. A sample that
is too long waits, and comes before all later samples of its source once the limit admits it.
Nothing is lost: samples that wait are part of the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import SampleTable
from evenstep.mixture.schedules import (
    FeedbackSchedule,
    Past,
    PerStep,
    Schedule,
    check_names,
    check_weights,
)
from evenstep.plan.value_checks import check_at_least, check_given, check_one_of

FIRST_EXHAUSTED = "first_exhausted"
ALL_EXHAUSTED = "all_exhausted"
ALL_REPEATED = "all_repeated"
REPEAT = "repeat"

UNKNOWN = 1 << 62
"""Samples that remain of a source whose size is not known, or which begins again."""

_RULES = (FIRST_EXHAUSTED, ALL_EXHAUSTED, ALL_REPEATED, REPEAT)


@dataclass(frozen=True)
class LengthCurriculum:
    """``LengthCurriculum({0: 512, 10_000: 4096, 10_001: None})``: grows linearly from 512 tokens to
    4,096, then has no limit."""

    limits: Mapping[int, int | None]
    """By step, from 0, the tokens of the longest sample; never falling. Only the last one may
    be None: no limit."""
    linear: bool = True
    """Grow in equal parts from each step named to the next; False jumps at the steps named."""
    max_waiting: int = 100_000
    """Samples of one source that may wait, in memory and in the state."""

    def __post_init__(self) -> None:
        check_given(max_waiting=self.max_waiting)
        check_at_least(1, max_waiting=self.max_waiting)
        if not isinstance(self.limits, Mapping) or 0 not in self.limits:
            raise ConfigurationError(
                f"limits={self.limits!r} must be a mapping from steps to lengths that has step 0"
            )
        for step, limit in self.limits.items():
            check_at_least(0, step=step)
            check_at_least(1, **{f"limit from step {step}": limit})
        ordered = {step: self.limits[step] for step in sorted(self.limits)}
        object.__setattr__(self, "limits", ordered)
        for (_, low), (step, high) in pairwise(ordered.items()):
            if low is None or (high is not None and high < low):
                raise ConfigurationError(
                    f"the limit from step {step:,} is {high}, and before it was {low}; limits "
                    "never fall, and None is the last"
                )

    def limit(self, step: int) -> int | None:
        """Tokens of the longest sample admitted in a step; None means no limit."""
        before = max(at for at in self.limits if at <= step)
        low = self.limits[before]
        after = min((at for at in self.limits if at > step), default=None)
        high = None if after is None else self.limits[after]
        if not self.linear or low is None or high is None or after is None:
            return low
        return low + (high - low) * (step - before) // (after - before)


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
    """One of the rules of `evenstep.mixture.mixture_options`."""
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
        check_one_of(_RULES, stop=self.stop)
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

    def left_of_pass(self, cursors: Int64Array) -> Int64Array:
        """[sources] samples from these positions to the end of the first pass, or `UNKNOWN`."""
        known = [self.sizes.get(name) for name in self.sources]
        sizes = np.array([UNKNOWN if size is None else size for size in known], np.int64)
        return np.where(sizes == UNKNOWN, UNKNOWN, np.maximum(sizes - cursors, 0))

    def tokens(self, table: SampleTable) -> Int64Array:
        """[samples] tokens of each."""
        names = table.lengths if self.modalities is None else self.modalities
        return table.tokens(name for name in names if name in table.lengths)
