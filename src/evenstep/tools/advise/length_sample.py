"""The lengths of some thousand samples, drawn at random to represent a data set.

A `Summary` has their mean, percentiles and more, and how certain the figures are. The ranges are
bootstrapped: lengths are resampled many times from those drawn, and each figure's spread is taken
over these. They cannot account for lengths so rare that none was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class LengthSample:
    """Lengths drawn from a data set."""

    name: str
    """Name of the data set."""
    lengths: Int64Array
    """[drawn] int64 tokens, in the data set's order."""
    total: int | None
    """Samples in the data set; None for a distribution, which is unlimited."""
    longest: int | None
    """The data set's longest sample, if it is known without measuring all."""
    how: str
    """Description of the draw, as the end of a sentence."""
    cut: int = 0
    """Samples that were longer than `max_length` and were cut to it."""
    max_length: int | None = None

    @property
    def whole(self) -> bool:
        """Whether all samples of the data set were drawn."""
        return self.total == len(self.lengths)

    def cut_to(self, max_length: int) -> LengthSample:
        """The same samples, each cut to `max_length` tokens."""
        check_at_least(1, max_length=max_length)
        return replace(
            self,
            lengths=np.minimum(self.lengths, max_length),
            longest=None if self.longest is None else min(self.longest, max_length),
            cut=int((self.lengths > max_length).sum()),
            max_length=max_length,
        )

    @classmethod
    def choose(
        cls, name: str, lengths: Int64Array, size: int | None, random: np.random.Generator
    ) -> LengthSample:
        """Draws `size` of `lengths`, which are those of the whole data set; None takes all."""
        total = len(lengths)
        if size is None or size >= total:
            return cls.measured(name, lengths, total, "")
        chosen = np.sort(random.choice(total, size, replace=False))
        return cls(
            name=name,
            lengths=lengths[chosen],
            total=total,
            longest=int(lengths.max()),
            how="drawn at random; number of samples and longest sample are those of the whole data",
        )

    @classmethod
    def measured(cls, name: str, lengths: Int64Array, total: int, how: str) -> LengthSample:
        """A sample of measured lengths, which were drawn from `total` samples as `how` says."""
        whole = len(lengths) == total
        return cls(
            name=name,
            lengths=lengths,
            total=total,
            longest=int(lengths.max()) if whole else None,
            how="all of them" if whole else how,
        )


@dataclass(frozen=True)
class Range:
    """``low <= value <= high``: the 5 to 95 % range of the value over other draws."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        return cls(value, value, value)

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def spread(sampled: int, total: int | None) -> float:
    """Factor on a bootstrap's deviations when `sampled` of `total` samples were drawn without
    replacement: 0 if all were drawn, 1 if `total` is unknown or much larger."""
    if total is None:
        return 1.0
    return math.sqrt(max(0.0, 1 - sampled / total))


def around(
    value: float,
    low_deviation: float,
    high_deviation: float,
    *,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> Range:
    """`value` with a negative and a positive deviation, clipped to the figure's limits."""
    return Range(
        value,
        min(value, max(floor, value + low_deviation)),
        max(value, min(ceiling, value + high_deviation)),
    )


def percentiles(
    value: float, replicates: npt.NDArray[np.float64], scale: float, *, floor: float = -math.inf
) -> Range:
    """`value` with the 5th and 95th percentile of the bootstrap's deviations from it."""
    low, high = np.quantile(replicates - value, [0.05, 0.95]) * scale
    return around(value, min(0.0, float(low)), max(0.0, float(high)), floor=floor)


_REPLICATES = 200
_RESAMPLED = 4_000_000  # lengths resampled in total, at most: a few seconds


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of the lengths, in tokens unless they say otherwise."""

    mean: Range
    median: Range
    p95: Range
    p99: Range
    cv: Range
    """Standard deviation over mean."""
    short: Range
    """f_s: the share of samples shorter than a quarter of `max_tokens` (ODB, section 4)."""
    short_at_twice_mean: Range
    """f_s for a budget of twice the mean length, with which ODB's search for a budget starts."""
    longest: int
    """The longest sample drawn."""
    shortest: int
    max_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Numbers and ranges by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: value.as_dict() if isinstance(value, Range) else value
            for name, value in values.items()
        }


def summarize(length_sample: LengthSample, max_tokens: int, seed: int = 0) -> Summary:
    """Figures of the lengths, with f_s for a budget of `max_tokens`."""
    lengths = length_sample.lengths
    values = _figures(lengths, max_tokens)
    scale = spread(len(lengths), length_sample.total)
    ranges = {name: Range.exact(value) for name, value in values.items()}
    if scale:
        random = generator(seed, RandomStream.ADVICE_BOOTSTRAP)
        count = max(20, min(_REPLICATES, _RESAMPLED // len(lengths)))
        drawn = [
            _figures(lengths[random.integers(len(lengths), size=len(lengths))], max_tokens)
            for _ in range(count)
        ]
        ranges = {
            name: percentiles(value, np.array([each[name] for each in drawn]), scale, floor=0.0)
            for name, value in values.items()
        }
    return Summary(
        **ranges, longest=int(lengths.max()), shortest=int(lengths.min()), max_tokens=max_tokens
    )


def _figures(lengths: Int64Array, max_tokens: int) -> dict[str, float]:
    mean = float(lengths.mean())
    median, p95, p99 = np.quantile(lengths, [0.5, 0.95, 0.99]).tolist()
    return {
        "mean": mean,
        "median": median,
        "p95": p95,
        "p99": p99,
        "cv": float(lengths.std()) / mean,
        "short": float((lengths < max_tokens / 4).mean()),
        "short_at_twice_mean": float((lengths < mean / 2).mean()),
    }


def return_on_investment(summary: Summary) -> tuple[str, str]:
    """ODB's screen (section 4): a word, and a sentence that gives its reason.

    The word is ``high``, ``small`` or ``moderate``. A CV below 0.3 is small too.
    """
    cv, short = summary.cv.value, summary.short.value
    if cv >= 0.8 or short > 0.2:
        reasons = [
            *([f"CV {cv:.2f} is at least 0.8"] if cv >= 0.8 else []),
            *([f"f_s {short:.2f} is over 0.2"] if short > 0.2 else []),
        ]
        meaning = (
            f"{' and '.join(reasons)}: lengths vary so much, or so many samples are short, that "
            "forming batches by length is expected to gain much"
        )
        if cv < 0.8:
            start = summary.short_at_twice_mean.value
            meaning += (
                f". But f_s grows with max_tokens: with twice the mean length it is {start:.2f}. "
                "Rely on the predictions rather than on this screen"
            )
        return "high", meaning
    if cv <= 0.5:
        return "small", (
            f"CV {cv:.2f} is at most 0.5 and f_s {short:.2f} at most 0.2: samples are similar, "
            "and the gain is expected to be smaller and to depend on the model"
        )
    return "moderate", (
        f"CV {cv:.2f} is between 0.5 and 0.8 and f_s {short:.2f} at most 0.2: between the two "
        "regimes that the screen distinguishes"
    )
