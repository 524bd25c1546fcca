"""One step's draws. A function of numbers: nothing is changed, the outcome is returned.

The sources of the draws follow from the pattern; here they meet the samples that there are. A draw
of a source that has none left ends the mixture, or the others divide the rest of the pattern, as
the stop rule says; and a step that holds a budget of tokens ends before the draw that would exceed
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import SampleError
from evenstep.strategy.mixture.options import Options
from evenstep.strategy.mixture.record import sequence
from evenstep.strategy.mixture.source_queues import SourceQueues, by_source
from evenstep.strategy.mixture.state import MixtureState
from evenstep.strategy.mixture.stop import ALL_EXHAUSTED, ALL_REPEATED, FIRST_EXHAUSTED
from evenstep.strategy.mixture.token_shares import draw_shares, expected_shares

__all__ = ["Drawing", "StepDraws", "check_lost"]


_MOST = 1 << 20
"""Samples of a step; with more, something else is meant."""


@dataclass(frozen=True, kw_only=True)
class StepDraws:
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
    lines: SourceQueues
    samples: int | None
    tokens: int | None
    guess: int
    """Samples that `tokens` will hold, about."""
    rule: str
    first_pass: Int64Array | None
    """[sources] samples that are left of its first pass, where their end ends the mixture; 0 for
    one that has ended it or does not count."""

    @classmethod
    def of(
        cls, options: Options, state: MixtureState, live: Float64Array, lines: SourceQueues
    ) -> Drawing:
        """The next step of a mixture.

        Args:
            live: [sources] weights of those that may be drawn, with a sum of 1.
        """
        means = np.divide(
            state.tokens, state.counts, out=np.zeros(len(live)), where=state.counts > 0
        )
        guess = 64.0
        if options.tokens_per_step is not None and state.counts.any():
            mean = max(int(state.tokens.sum()) / int(state.counts.sum()), 1.0)
            guess = max(options.tokens_per_step / mean, 1.0)
        shares = live
        if options.unit == "tokens":
            shares = draw_shares(
                live,
                lines,
                options.sources,
                state.balance,
                means,
                samples=options.samples_per_step,
                tokens=options.tokens_per_step,
            )
        elif options.balances:
            shares = expected_shares(live, state.balance, guess)
        first_pass = None
        if options.stop == ALL_REPEATED:
            first_pass = np.where(live > 0, options.left_of_pass(state.cursors), 0)
        return cls(
            seed=options.seed,
            step=state.step,
            weights=live,
            shares=shares,
            lines=lines,
            samples=options.samples_per_step,
            tokens=options.tokens_per_step,
            guess=int(guess * 17 / 16) + 8,  # so that one look mostly is enough
            rule=options.stop,
            first_pass=first_pass,
        )

    def run(self) -> StepDraws:
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
            if self.rule == FIRST_EXHAUSTED and not self.lines.stuck[source]:
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
        return StepDraws(sources=drawn, phases=phases, ended=end is not None)

    def _counts(self, drawn: Int64Array) -> Int64Array:
        return np.bincount(drawn, minlength=len(self.weights))

    def _first_lack(self, drawn: Int64Array) -> tuple[int, int | None]:
        """The first draw that asks for a sample that is not there, and its source."""
        counts = self._counts(drawn)
        there = self.lines.reach(counts)
        lacks = [
            (int(np.flatnonzero(drawn == source)[there[source]]), source)
            for source in np.flatnonzero(there < counts).tolist()
        ]
        return min(lacks, default=(len(drawn), None))

    def _over_budget(self, drawn: Int64Array) -> int | None:
        """The first draw that would exceed the budget."""
        assert self.tokens is not None
        lengths = np.empty(len(drawn), np.int64)
        order = by_source(drawn, len(self.weights))
        lengths[order] = self.lines.lengths(self._counts(drawn))
        sums = lengths.cumsum()
        cut = int(sums.searchsorted(self.tokens, side="right"))
        if cut == len(drawn):
            return None
        if cut == 0:
            sample = self.lines.taken(self._counts(drawn[:1])).samples
            raise SampleError(
                f"sample {sample.identity(0)} has {lengths[0]:,} tokens, over "
                f"tokens_per_step={self.tokens:,}; cut or leave out long samples, or raise it"
            )
        return cut

    def _end(self, drawn: Int64Array) -> int | None:
        """How many draws there are until the mixture ends, if it ends in this step."""
        counts = self._counts(drawn)
        if self.first_pass is not None:
            left = self.first_pass
            if (counts < left).any():
                return None
            ends = [int(np.flatnonzero(drawn == s)[left[s] - 1]) + 1 for s in np.flatnonzero(left)]
            return max(ends, default=0)
        over = self.lines.over_after(counts)
        if self.rule == FIRST_EXHAUSTED and over.any():
            return min(
                int(np.flatnonzero(drawn == s)[counts[s] - 1]) + 1 if counts[s] else 0
                for s in np.flatnonzero(over)
            )
        return len(drawn) if (over == self.lines.live).all() else None


def check_lost(
    drawn: StepDraws,
    lines: SourceQueues,
    options: Options,
    state: MixtureState,
    peaks: Mapping[str, float] | None,
) -> None:
    """Refuses a step in which nothing can be drawn and nothing ever could, or after which a source
    would be left for good that has a weight in another step.

    Args:
        state: before the step.
        peaks: by name of each source the largest weight that it ever has, where that is known.
    """
    if not drawn.ended and not len(drawn.sources):
        raise SampleError(
            f"nothing can be drawn in step {state.step:,}: all that is left is longer than the "
            f"curriculum admits ({options.curriculum}); raise its limits. Samples that wait: "
            f"{lines.waiting_by_name()}"
        )
    if drawn.ended and options.stop == ALL_EXHAUSTED and not state.ended and peaks:
        left = [
            name
            for source, name in enumerate(options.sources)
            if peaks.get(name) and not lines.live[source] and not state.over[source]
        ]
        if left:
            raise SampleError(
                f"in step {state.step:,} every source that has a weight has ended, and "
                f"{', '.join(map(repr, left[:5]))} would have one in another step; let the stages "
                "overlap, or choose stop='repeat'"
            )
