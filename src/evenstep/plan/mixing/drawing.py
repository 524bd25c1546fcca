"""One step's draws. A function of numbers: nothing is changed, the outcome is returned.

The sources of the draws follow from the pattern; here they meet the samples that there are. A draw
of a source that has none left ends the mixture, or the others divide the rest of the pattern, as
the stop rule says; and a step that holds a budget of tokens ends before the draw that would exceed
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.errors import SampleError
from evenstep.plan.mixing.line import Line
from evenstep.plan.mixing.record import sequence
from evenstep.plan.mixing.stop import FIRST_EXHAUSTED

__all__ = ["Drawing", "Drawn"]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_MOST = 1 << 20
"""Samples of a step; with more, something else is meant."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    sources: Int64Array
    """[draws] the source of each, not shuffled."""
    phases: list[tuple[int, Float64Array]]
    ended: bool


@dataclass(kw_only=True)
class Drawing:
    """What decides the draws of a step."""

    seed: int
    step: int
    weights: Float64Array
    """[sources] of those that may be drawn."""
    shares: Float64Array
    """[sources] of the pattern."""
    lines: list[Line | None]
    """[sources] None for one without a share."""
    samples: int | None
    tokens: int | None
    guess: int
    """Samples that `tokens` will hold, about."""
    rule: str
    first_pass: Int64Array | None
    """[sources] samples that are left of its first pass, where their end ends the mixture; 0 for
    one that has ended it or does not count."""

    def run(self) -> Drawn:
        """
        Raises:
            SampleError: a sample exceeds the budget of a step by itself.
        """
        phases = [(0, self.shares.copy())]
        count = self.samples if self.samples is not None else self.guess
        lacking: list[int] = []
        while True:
            drawn = sequence(self.seed, self.step, count, phases)
            place, source = self._first_lack(drawn)
            if self.tokens is not None:
                cut = self._over_budget(drawn[:place])
                if cut is not None:
                    drawn = drawn[:cut]
                    break
            if source is None:
                if self.samples is not None:
                    break
                if count > _MOST:
                    raise SampleError(
                        f"{count:,} samples hold fewer than tokens_per_step={self.tokens:,}; their "
                        "lengths must count what modalities= of the mixture names"
                    )
                count += count // 2 + 64
                continue
            if self.rule == FIRST_EXHAUSTED and not self._line(source).stuck:
                drawn = drawn[:place]
                break
            lacking.append(source)
            rest = phases[-1][1].copy()
            rest[lacking] = 0.0
            if not rest.any():
                rest = self.weights.copy()  # of sources that were not to give any in this step
                rest[lacking] = 0.0
            if not rest.any():
                drawn = drawn[:place]
                break
            if phases[-1][0] == place:
                phases.pop()
            phases.append((place, rest))
        end = self._end(drawn)
        if end is not None:
            drawn = drawn[:end]
        return Drawn(sources=drawn, phases=phases, ended=end is not None)

    def _line(self, source: int) -> Line:
        line = self.lines[source]
        assert line is not None
        return line

    def _counts(self, drawn: Int64Array) -> Int64Array:
        return np.bincount(drawn, minlength=len(self.lines))

    def _first_lack(self, drawn: Int64Array) -> tuple[int, int | None]:
        """The first draw that asks for a sample that is not there, and its source."""
        place, lacking = len(drawn), None
        counts = self._counts(drawn)
        for source in np.flatnonzero(counts).tolist():
            there = self._line(source).reach(int(counts[source]))
            if there < counts[source]:
                at = int(np.flatnonzero(drawn == source)[there])
                if at < place:
                    place, lacking = at, source
        return place, lacking

    def _over_budget(self, drawn: Int64Array) -> int | None:
        """The first draw that would exceed the budget."""
        assert self.tokens is not None
        counts = self._counts(drawn)
        lengths = np.empty(len(drawn), np.int64)
        by_source = [
            self._line(source).lengths(int(counts[source]))
            for source in np.flatnonzero(counts).tolist()
        ]
        lengths[drawn.argsort(kind="stable")] = np.concatenate([np.empty(0, np.int64), *by_source])
        sums = lengths.cumsum()
        cut = int(sums.searchsorted(self.tokens, side="right"))
        if cut == len(drawn):
            return None
        if cut == 0:
            line = self._line(int(drawn[0]))
            sample = line.taken(1).samples
            raise SampleError(
                f"sample {sample.identity(0)} has {lengths[0]:,} tokens, over "
                f"tokens_per_step={self.tokens:,}; cut or leave out long samples, or raise it"
            )
        return cut

    def _end(self, drawn: Int64Array) -> int | None:
        """How many draws there are until the mixture ends, if it ends in this step."""
        counts = self._counts(drawn)
        shared = [source for source, line in enumerate(self.lines) if line is not None]
        if self.first_pass is not None:
            left = self.first_pass
            if (counts < left).any():
                return None
            ends = [int(np.flatnonzero(drawn == s)[left[s] - 1]) + 1 for s in np.flatnonzero(left)]
            return max(ends, default=0)
        over = [s for s in shared if self._line(s).over_after(int(counts[s]))]
        if self.rule == FIRST_EXHAUSTED and over:
            return min(
                int(np.flatnonzero(drawn == s)[counts[s] - 1]) + 1 if counts[s] else 0 for s in over
            )
        return len(drawn) if len(over) == len(shared) else None
