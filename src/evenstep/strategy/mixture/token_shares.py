"""Shares of draws that make shares of tokens come out as the weights say.

A source of long samples must be drawn the less often. How long its samples are is not assumed: its
own next samples are looked at, up to as many tokens as it is to give. What it gave too much or too
little is its balance, which is part of the state and is taken off in the next step. So the share in
tokens misses the weight by a constant number of tokens, some samples' worth, however many steps
have passed and however unlike the lengths of the sources are or become.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import SampleError
from evenstep.strategy.mixture.source_queues import SourceQueues

__all__ = ["draw_shares", "expected_shares", "settled_balance"]


_SAMPLED = 16  # samples that tell the mean length of a source of which nothing is known

_EMPTY = 1024  # samples without a token after which none is expected


def draw_shares(
    weights: Float64Array,
    lines: SourceQueues,
    names: Sequence[str],
    balance: Float64Array,
    means: Float64Array,
    *,
    samples: int | None,
    tokens: int | None,
) -> Float64Array:
    """
    Args:
        weights: [sources] shares in tokens, with a sum of 1.
        lines: of all sources whose weight is positive.
        names: of the sources.
        balance: [sources] tokens that each has still to give, from the steps before.
        means: [sources] mean length of what each gave so far; 0 where it gave nothing.
        samples, tokens: what the step is to hold, one of them.

    Returns:
        [sources] samples that each is expected to give; some positive.

    Raises:
        SampleError: the next samples of a source have no tokens.
    """
    live = np.flatnonzero(weights)
    means = np.where(means > 0, means, _first_means(lines, (weights > 0) & (means <= 0)))
    if tokens is None:
        assert samples is not None
        tokens_of_step = samples / math.fsum((weights[live] / means[live]).tolist())
    else:
        tokens_of_step = float(tokens)
    wanted = expected_shares(weights, balance, tokens_of_step)
    shares = _samples_worth(lines, names, live, wanted, means)
    return shares if shares.any() else weights


def expected_shares(weights: Float64Array, balance: Float64Array, amount: float) -> Float64Array:
    """[sources] tokens or samples that each is to give in a step that holds `amount`, so that its
    balance is settled; some positive."""
    live = weights > 0
    owed = np.where(live, balance - weights * math.fsum(balance[live].tolist()), 0.0)
    wanted = np.maximum(weights * amount + owed, 0.0)
    return wanted if wanted.any() else weights


def settled_balance(
    balance: Float64Array, weights: Float64Array, given: Int64Array
) -> Float64Array:
    """[sources] the balance after a step in which each gave so many tokens or samples."""
    return balance + weights * float(given.sum()) - given


def _first_means(lines: SourceQueues, asked: npt.NDArray[np.bool_]) -> Float64Array:
    """[sources] mean length of the next samples of those that are asked for, at least 1."""
    if not asked.any():
        return np.ones(len(asked))
    counts = np.where(asked, _SAMPLED, 0)
    counts = np.minimum(lines.reach(counts), counts)
    return np.maximum(_Running.of(lines, counts).totals / np.maximum(counts, 1), 1.0)


def _samples_worth(
    lines: SourceQueues,
    names: Sequence[str],
    live: Int64Array,
    tokens: Float64Array,
    means: Float64Array,
) -> Float64Array:
    """[sources] how many of the next samples of each that is live hold so many tokens, the last one
    in part."""
    counts = np.zeros(len(tokens), np.int64)
    counts[live] = np.ceil(tokens[live] / means[live] * 1.1).astype(np.int64) + 2
    while True:
        reached = np.minimum(lines.reach(counts), counts)
        running = _Running.of(lines, reached)
        short = live[((reached == counts) & (running.totals < tokens))[live]]
        if not len(short):
            return running.held(tokens)
        empty = short[(counts[short] > _EMPTY) & (running.totals[short] == 0)]
        if len(empty):
            raise SampleError(
                f"the next {counts[empty[0]]:,} samples of source {names[empty[0]]!r} have no "
                "tokens, so it can have no share of them; count another modality, or use "
                "unit='samples'"
            )
        counts[short] *= 2


@dataclass(frozen=True)
class _Running:
    """Tokens of the next samples of each source, added up one by one."""

    sums: Int64Array
    """[samples] by source: of its samples up to and with this one."""
    counts: Int64Array
    """[sources] samples."""
    totals: Int64Array
    """[sources] tokens of these."""

    @classmethod
    def of(cls, lines: SourceQueues, counts: Int64Array) -> _Running:
        sums = np.append(0, lines.lengths(counts).cumsum())
        ends = counts.cumsum()
        before = sums[ends - counts]
        return cls(sums[1:] - before.repeat(counts), counts, sums[ends] - before)

    def held(self, tokens: Float64Array) -> Float64Array:
        """[sources] samples that hold so many tokens, the last one in part; all where they hold no
        more."""
        begins = self.counts.cumsum() - self.counts
        within = np.append(0, (self.sums <= tokens.repeat(self.counts)).cumsum())
        whole = within[begins + self.counts] - within[begins]
        found: Float64Array = whole.astype(np.float64)
        cut = np.flatnonzero(whole < self.counts)
        first = begins[cut] + whole[cut]
        before = np.where(whole[cut] > 0, self.sums[first - 1], 0)
        found[cut] += (tokens[cut] - before) / (self.sums[first] - before)
        return found
