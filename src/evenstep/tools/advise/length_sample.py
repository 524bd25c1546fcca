"""A sketch: the lengths of some thousand samples, drawn at random, that stand for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least

__all__ = ["LengthSample"]


@dataclass(frozen=True, kw_only=True)
class LengthSample:
    """Lengths drawn from a data set."""

    name: str
    """Of the data set."""
    lengths: Int64Array
    """[sketch] int64 tokens, in the data set's order."""
    total: int | None
    """Samples in the data set; None where there is no end to it."""
    longest: int | None
    """The data set's longest sample, where that is known without measuring all."""
    how: str
    """How the samples were drawn, as the end of a sentence."""
    cut: int = 0
    """Samples that were longer than `max_length` and count as that long."""
    max_length: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the data set."""
        return self.total == len(self.lengths)

    def cut_to(self, max_length: int) -> LengthSample:
        """The sketch of the same data, each sample cut to `max_length` tokens."""
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
        """Of lengths that are all at hand; `size` None takes all."""
        total = len(lengths)
        if size is None or size >= total:
            return cls.measured(name, lengths, total, "")
        chosen = np.sort(random.choice(total, size, replace=False))
        return cls(
            name=name,
            lengths=lengths[chosen],
            total=total,
            longest=int(lengths.max()),
            how="drawn at random; the number of samples and the longest are those of all",
        )

    @classmethod
    def measured(cls, name: str, lengths: Int64Array, total: int, how: str) -> LengthSample:
        """Of `lengths` that were measured, `how` saying how they were drawn from `total`."""
        whole = len(lengths) == total
        return cls(
            name=name,
            lengths=lengths,
            total=total,
            longest=int(lengths.max()) if whole else None,
            how="all of them" if whole else how,
        )
