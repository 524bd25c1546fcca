"""Shares of draws that make shares of samples or tokens come out as the weights say.

A source that gave less than its share has a *deficit* (one that gave more, a negative one), which
is part of the state and is added to what it is to give in the next step. So the share in samples
misses the weight by about one sample, however many steps have passed.

In shares of tokens a source of long samples must be drawn less often. How long its samples are is
not assumed: its own next samples are looked at, up to as many tokens as it is to give. The share in
tokens misses the weight by the length of a few samples, however many steps have passed and however
unlike the lengths of the sources are or become.

Two sources of weight 1/2 each, a step of 1,000 tokens; samples of a have 300 tokens, of b 50:

    step 0   to give [500, 500]   shares of draws [500/300, 500/50] = [1.67, 10]
             say [2, 8] samples are drawn, [600, 400] tokens      deficit [-100, 100]
    step 1   to give [400, 600]   shares of draws [1.33, 12]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.errors import SampleError
from evenstep.mixture.source_queues import SourceQueues

_SAMPLED = 16
"""Samples from which the mean length of a source that gave nothing yet is estimated."""
_TOKENLESS = 1024
"""Samples without a token after which none is expected to have any."""
_HEADROOM = 1.1
"""So that the samples looked at first mostly hold the tokens wanted, and one look is enough."""


def draw_shares(
    weights: Float64Array,
    queues: SourceQueues,
    names: Sequence[str],
    deficit: Float64Array,
    means: Float64Array,
    *,
    samples: int | None,
    tokens: int | None,
) -> Float64Array:
    """
    Args:
        weights: [sources] shares in tokens, with a sum of 1.
        queues: of the sources; those with a positive weight are active.
        names: [sources]
        deficit: [sources] tokens that each is behind its share, from the steps before.
        means: [sources] mean length of the samples that each gave so far; 0 if it gave none.
        samples, tokens: amount of the step, one of them.

    Returns:
        [sources] samples that each is expected to give; some positive.

    Raises:
        SampleError: the next samples of a source have no tokens.
    """
    active = np.flatnonzero(weights)
    means = np.where(means > 0, means, _first_means(queues, (weights > 0) & (means <= 0)))
    if tokens is not None:
        wanted = expected_shares(weights, deficit, tokens)  # [sources] tokens
    else:
        assert samples is not None
        wanted = np.zeros(len(weights))
        owed = _owed(weights, deficit, active)
        wanted[active] = _tokens_of(samples, weights[active], owed, means[active])
    shares = _samples_holding(wanted, queues, names, active, means)  # [sources] samples
    return shares if shares.any() else weights


def expected_shares(weights: Float64Array, deficit: Float64Array, amount: float) -> Float64Array:
    """[sources] tokens or samples that each is to give in a step of `amount`, which is their sum,
    so that deficits are settled.

    A source that is further ahead than its share of the step gives nothing. What the others would
    then give too much is taken from all of them alike, so those furthest behind still come first: a
    step of 2 of weights 1/4 each, which are behind by [1, 0, 0, -1], is to give [1.33, 0.33, 0.33,
    0].

    Args:
        weights: [sources] with a sum of 1; 0 for a source that gives nothing now.
        deficit: [sources] in the unit of `amount`.
    """
    active = np.flatnonzero(weights)
    wanted = weights[active] * amount + _owed(weights, deficit, active)
    # The projection onto what is not negative and adds up to the amount: all less the same number.
    largest = np.sort(wanted)[::-1]
    excess = (largest.cumsum() - amount) / np.arange(1, len(wanted) + 1)
    taken = excess[np.flatnonzero(largest > excess)[-1]]
    shares = np.zeros(len(weights))
    shares[active] = np.maximum(wanted - taken, 0.0)
    return shares


def _owed(weights: Float64Array, deficit: Float64Array, active: Int64Array) -> Float64Array:
    """[active] what each is owed by the others, with a sum of 0. Deficits of sources that are not
    active are not settled now, so those of the others need not sum to it."""
    owed: Float64Array = deficit[active] - weights[active] * math.fsum(deficit[active].tolist())
    return owed


def _tokens_of(
    samples: int, weights: Float64Array, owed: Float64Array, means: Float64Array
) -> Float64Array:
    """[sources] tokens that each is to give in a step of so many samples, so that deficits are
    settled. A source that is further ahead than its share of the step gives nothing.

    Means of [10, 100] tokens, weights of 1/2, and the first ahead of the second by 400: 15 samples
    are to give [100, 500] tokens, in [10, 5] samples.

    Args:
        weights, owed, means: [sources] of those with a positive weight.
    """
    # Finds the size for which maximum(weights * size + owed, 0) / means has the sum `samples`.
    begins = -owed / weights  # [sources] sizes from which each gives something
    order = np.argsort(begins, kind="stable")
    sizes = (samples - (owed / means)[order].cumsum()) / (weights / means)[order].cumsum()
    size = sizes[np.flatnonzero(sizes > begins[order])[-1]]
    tokens: Float64Array = np.maximum(weights * size + owed, 0.0)
    return tokens


def deficit_after(
    deficit: Float64Array, weights: Float64Array, given: Int64Array, lacking: Sequence[int]
) -> Float64Array:
    """[sources] the deficit after a step in which each gave `given` tokens or samples.

    Args:
        lacking: sources that had no sample left, because a curriculum holds back those that they
            have. They are owed nothing for what the others gave instead, or they would later take
            whole steps for themselves.
    """
    shares = weights.copy()
    shares[lacking] = 0.0
    if shares.any():
        shares *= float(given.sum() - given[lacking].sum()) / math.fsum(shares.tolist())
    shares[lacking] = given[lacking]
    after: Float64Array = deficit + shares - given
    return after


def _first_means(queues: SourceQueues, asked: BoolArray) -> Float64Array:
    """[sources] mean length of the next samples of the `asked` sources, at least 1."""
    if not asked.any():
        return np.ones(len(asked))
    counts = np.where(asked, _SAMPLED, 0)
    counts = np.minimum(queues.look_ahead(counts), counts)
    return np.maximum(_PrefixSums.of(queues, counts).totals / np.maximum(counts, 1), 1.0)


def _samples_holding(
    tokens: Float64Array,
    queues: SourceQueues,
    names: Sequence[str],
    active: Int64Array,
    means: Float64Array,
) -> Float64Array:
    """[sources] how many of the next samples hold these tokens, the last one in part.

    Args:
        tokens: [sources]
        active: numbers of the active sources.
    """
    counts = np.zeros(len(tokens), np.int64)
    counts[active] = np.ceil(tokens[active] / means[active] * _HEADROOM).astype(np.int64) + 2
    while True:
        available = np.minimum(queues.look_ahead(counts), counts)
        sums = _PrefixSums.of(queues, available)
        short = active[((available == counts) & (sums.totals < tokens))[active]]
        if not len(short):
            return sums.samples_holding(tokens)
        tokenless = short[(counts[short] > _TOKENLESS) & (sums.totals[short] == 0)]
        if len(tokenless):
            raise SampleError(
                f"the next {counts[tokenless[0]]:,} samples of source {names[tokenless[0]]!r} have "
                "no tokens, so it can have no share of them; count another modality, or use "
                "by='samples'"
            )
        counts[short] *= 2


@dataclass(frozen=True)
class _PrefixSums:
    """Tokens of the next samples of each source, added up one by one."""

    sums: Int64Array
    """[samples] by source: tokens of its samples up to and with this one."""
    counts: Int64Array
    """[sources] samples."""
    totals: Int64Array
    """[sources] tokens of these."""

    @classmethod
    def of(cls, queues: SourceQueues, counts: Int64Array) -> _PrefixSums:
        sums = np.append(0, queues.lengths(counts).cumsum())  # [1 + samples] over all sources
        ends = counts.cumsum()
        before = sums[ends - counts]  # [sources] tokens of the sources before each
        return cls(sums[1:] - before.repeat(counts), counts, sums[ends] - before)

    def samples_holding(self, tokens: Float64Array) -> Float64Array:
        """[sources] samples that hold these tokens, the last one in part; all samples of a source
        that has fewer tokens.

        Sums of 10, 30, 60 hold 45 tokens in 2.5 samples: two whole ones and half of the third.
        """
        begins = self.counts.cumsum() - self.counts
        fits = np.append(0, (self.sums <= tokens.repeat(self.counts)).cumsum())  # [1 + samples]
        whole = fits[begins + self.counts] - fits[begins]  # [sources] samples that fit whole
        found: Float64Array = whole.astype(np.float64)
        cut = np.flatnonzero(whole < self.counts)  # sources whose next sample fits in part
        first = begins[cut] + whole[cut]  # that sample
        before = np.where(whole[cut] > 0, self.sums[first - 1], 0)
        found[cut] += (tokens[cut] - before) / (self.sums[first] - before)
        return found
