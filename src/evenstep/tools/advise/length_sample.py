"""The lengths of some thousand samples, drawn at random to represent a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.too_long import pieces_of
from evenstep.plan.value_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class TooLong:
    """The samples that are longer than a limit, and what each choice of `too_long` costs."""

    limit: int
    samples: int
    drawn: int
    """Samples, those that are not too long included."""
    lost_by_skip: float
    """Share of the tokens."""
    lost_by_truncate: float
    pieces: int
    """Samples that "split" makes of them."""
    longest: int
    """Tokens that there must be memory for under "alone"."""

    @classmethod
    def of(cls, lengths: Int64Array, limit: int) -> TooLong | None:
        """None where no sample is too long."""
        long = lengths[lengths > limit]
        if not len(long):
            return None
        tokens = int(lengths.sum())
        return cls(
            limit=limit,
            samples=len(long),
            drawn=len(lengths),
            lost_by_skip=int(long.sum()) / tokens,
            lost_by_truncate=int((long - limit).sum()) / tokens,
            pieces=len(pieces_of(long, limit, "split")),
            longest=int(long.max()),
        )

    def __str__(self) -> str:
        return (
            f"{self.samples:,} of the {self.drawn:,} samples are longer than {self.limit:,} "
            f"tokens. Of all tokens, too_long='skip' loses {self.lost_by_skip:.1%} and 'truncate' "
            f"{self.lost_by_truncate:.1%}; 'split' makes {self.pieces:,} samples of them; 'alone' "
            f"pads nothing, and needs memory for {self.longest:,} tokens, "
            f"{self.longest / self.limit:.1f} times the limit, while other ranks wait that have "
            "none as long"
        )


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
    cut: TooLong | None = None
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
            cut=TooLong.of(self.lengths, max_length),
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


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of the lengths drawn, in tokens unless they say otherwise."""

    mean: float
    median: float
    p95: float
    p99: float
    longest: int
    cv: float
    """Standard deviation over mean."""

    @classmethod
    def of(cls, lengths: Int64Array) -> Summary:
        mean = float(lengths.mean())
        median, p95, p99 = np.quantile(lengths, [0.5, 0.95, 0.99]).tolist()
        return cls(
            mean=mean,
            median=median,
            p95=p95,
            p99=p99,
            longest=int(lengths.max()),
            cv=float(lengths.std()) / mean,
        )
