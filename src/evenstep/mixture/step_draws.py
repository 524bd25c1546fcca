"""One step's draws: a function of numbers, which returns the outcome and changes nothing.

The pattern of the step assigns each draw a source (see `pattern`). Here it meets the samples that
there are. If a draw asks for a source that has none left, then by the stop rule either the mixture
ends there, or the other sources divide the rest of the pattern: a new *phase*. A step with a budget
of tokens ends before the draw that would exceed it.

Six draws of sources a, b and c with shares 2 : 1 : 1, stop="all_exhausted", one sample left of b:

    phases [(0, [2, 1, 1])]                     pattern  a b a c a b
                                                                   ^ draw 5 asks for a second b
    phases [(0, [2, 1, 1]), (5, [2, 0, 1])]     pattern  a b a c a c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import SampleError
from evenstep.mixture.mixture_options import ALL_EXHAUSTED, ALL_REPEATED, FIRST_EXHAUSTED, Options
from evenstep.mixture.pattern import sequence
from evenstep.mixture.source_queues import SourceQueues, by_source
from evenstep.mixture.state import MixtureState
from evenstep.mixture.token_shares import draw_shares, expected_shares

_MOST_DRAWS = 1 << 20
"""Draws of a step that a budget of tokens may need. More means that samples have no tokens."""
_FIRST_GUESS = 64.0
"""Samples that a budget of tokens is taken to hold before any length is known."""


@dataclass(frozen=True, kw_only=True)
class StepDraws:
    """The draws of a step, not shuffled."""

    sources: Int64Array
    """[draws] the source of each."""
    lacking: list[int]
    """Sources that had no sample left for a draw of theirs."""
    ended: bool
    """Whether the mixture ends with this step."""


@dataclass(frozen=True, kw_only=True)
class DrawRecord:
    """What was drawn for a step."""

    step: int
    weights: Mapping[str, float]
    """As the schedule gave them."""
    bad: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """By source, the positions of samples that were passed over because they cannot be used, as
    runs (first, last + 1)."""


class StepDrawer:
    """The draws of the next step of a mixture."""

    def __init__(
        self, options: Options, state: MixtureState, weights: Float64Array, queues: SourceQueues
    ) -> None:
        """
        Args:
            weights: [sources] with a sum of 1; 0 for a source that is not active.
        """
        guess = float(options.samples_per_step or _FIRST_GUESS)
        if options.tokens_per_step is not None and state.counts.any():
            mean = max(int(state.tokens.sum()) / int(state.counts.sum()), 1.0)
            guess = max(options.tokens_per_step / mean, 1.0)
        self._options, self._step = options, state.step
        self._weights, self._queues = weights, queues
        self._samples, self._tokens = options.samples_per_step, options.tokens_per_step
        self._shares = _shares(options, state, weights, queues, guess)
        self._guess = int(guess * 17 / 16) + 8  # so that one look is mostly enough
        self._first_pass: Int64Array | None = None
        """[sources] samples left of the first pass, 0 for a source that has ended it or is not
        active. The mixture ends when all have ended it; None under other stop rules."""
        if options.stop == ALL_REPEATED:
            self._first_pass = np.where(weights > 0, options.left_of_pass(state.cursors), 0)

    def run(self) -> StepDraws:
        """
        Raises:
            SampleError: a sample exceeds the budget of a step by itself, or samples have no tokens.
        """
        phases = [(0, self._shares.copy())]
        draws = self._samples if self._samples is not None else self._guess
        empty: list[int] = []  # sources without a sample left, in this step
        while True:
            drawn = sequence(self._options.seed, self._step, draws, phases, samples=self._samples)
            length, source = self._available(drawn)
            cut = self._over_budget(drawn[:length])
            if cut is not None:
                length = cut
            elif source is None and self._samples is None:
                draws = self._more(draws)
                continue
            elif source is not None and not self._ends_at(source):
                empty.append(source)
                shares = self._shares_without(empty, phases[-1][1])
                if shares is not None:
                    if phases[-1][0] == length:  # it did not contribute a draw
                        phases.pop()
                    phases.append((length, shares))
                    continue
            drawn = drawn[:length]
            end = self._end(drawn)
            return StepDraws(sources=drawn[:end], lacking=empty, ended=end is not None)

    def _available(self, drawn: Int64Array) -> tuple[int, int | None]:
        """How many draws find a sample, and the source that the next one lacks; None if all do."""
        counts = self._counts(drawn)
        available = self._queues.look_ahead(counts)
        lacks = [
            (int(np.flatnonzero(drawn == source)[available[source]]), source)
            for source in np.flatnonzero(available < counts).tolist()
        ]
        return min(lacks, default=(len(drawn), None))

    def _over_budget(self, drawn: Int64Array) -> int | None:
        """The first draw that would exceed the budget of tokens; None if none does."""
        if self._tokens is None:
            return None
        lengths = np.empty(len(drawn), np.int64)  # [draws] in the order of the pattern
        order = by_source(drawn, len(self._weights))
        lengths[order] = self._queues.lengths(self._counts(drawn))
        cut = int(lengths.cumsum().searchsorted(self._tokens, side="right"))
        if cut == len(drawn):
            return None
        if cut == 0:
            sample = self._queues.taken(self._counts(drawn[:1])).samples
            raise SampleError(
                f"sample {sample.identity(0)} has {lengths[0]:,} tokens, over "
                f"tokens_per_step={self._tokens:,}; truncate or exclude long samples, or raise it"
            )
        return cut

    def _more(self, draws: int) -> int:
        """More draws, after these left room in the budget of tokens."""
        if draws > _MOST_DRAWS:
            raise SampleError(
                f"{draws:,} samples hold fewer than tokens_per_step={self._tokens:,} tokens; name "
                "modalities= in which samples have lengths"
            )
        return draws + draws // 2 + 64

    def _ends_at(self, source: int) -> bool:
        """Whether the mixture ends where this source has no sample left."""
        return self._options.stop == FIRST_EXHAUSTED and not self._queues.blocked[source]

    def _shares_without(self, empty: list[int], shares: Float64Array) -> Float64Array | None:
        """[sources] shares of those that still have samples; None if none does."""
        for given in (shares, self._weights):  # the latter for sources with no share in this step
            rest: Float64Array = given.copy()
            rest[empty] = 0.0
            if rest.any():
                return rest
        return None

    def _end(self, drawn: Int64Array) -> int | None:
        """How many draws there are until the mixture ends; None if it does not in this step."""
        counts = self._counts(drawn)
        if self._first_pass is not None:
            left = self._first_pass - self._queues.bad_within(self._first_pass)
            if (counts < left).any():
                return None
            return max((_end_of(drawn, s, left[s]) for s in np.flatnonzero(left)), default=0)
        exhausted = self._queues.exhausted_after(counts)
        if self._options.stop == FIRST_EXHAUSTED and exhausted.any():
            return min(_end_of(drawn, s, counts[s]) for s in np.flatnonzero(exhausted))
        return len(drawn) if (exhausted == self._queues.active).all() else None

    def _counts(self, drawn: Int64Array) -> Int64Array:
        """[sources] draws of each."""
        return np.bincount(drawn, minlength=len(self._weights))


def _shares(
    options: Options,
    state: MixtureState,
    weights: Float64Array,
    queues: SourceQueues,
    samples: float,
) -> Float64Array:
    """[sources] shares of the pattern that make the weights come out in the mixture's unit.

    Args:
        samples: that the step is expected to draw.
    """
    if options.by == "tokens":
        means = np.divide(
            state.tokens, state.counts, out=np.zeros(len(weights)), where=state.counts > 0
        )
        return draw_shares(
            weights,
            queues,
            options.sources,
            state.deficit,
            means,
            samples=options.samples_per_step,
            tokens=options.tokens_per_step,
        )
    return expected_shares(weights, state.deficit, samples)


def _end_of(drawn: Int64Array, source: np.integer[Any], count: np.integer[Any]) -> int:
    """How many draws there are up to and with draw number `count` of a source."""
    return int(np.flatnonzero(drawn == source)[count - 1]) + 1 if count else 0


def check_reachable(
    drawn: StepDraws,
    queues: SourceQueues,
    options: Options,
    state: MixtureState,
    peaks: Mapping[str, float] | None,
) -> None:
    """Refuses a step after which samples would be left that no later step could draw.

    Args:
        drawn: the step's draws.
        queues: of the sources, as the step saw them.
        options: of the mixture.
        state: before the step.
        peaks: by name of each source the largest weight that it ever has, if that is known.

    Raises:
        SampleError: nothing can be drawn although the mixture has not ended; or it ends, and a
            source that is left has a weight in another step.
    """
    if not drawn.ended and not len(drawn.sources):
        raise SampleError(
            f"nothing can be drawn in step {state.step:,}: all samples that are left are longer "
            f"than the curriculum admits ({options.curriculum}); raise its limits. Samples that "
            f"wait: {queues.waiting_by_name()}"
        )
    if drawn.ended and options.stop == ALL_EXHAUSTED and not state.ended and peaks:
        left = [
            name
            for source, name in enumerate(options.sources)
            if peaks.get(name) and not queues.active[source] and not state.exhausted[source]
        ]
        if left:
            raise SampleError(
                f"in step {state.step:,} every source that has a weight has ended, and "
                f"{', '.join(map(repr, left[:5]))} would have one in another step; let the stages "
                "overlap, or choose stop='repeat'"
            )
