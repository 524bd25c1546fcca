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

import numpy as np
import numpy.typing as npt

from evenstep.errors import SampleError
from evenstep.plan.mixing.line import Line

__all__ = ["draw_shares", "expected_shares", "settled_balance"]

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

_SAMPLED = 16  # samples that tell the mean length of a source of which nothing is known

_EMPTY = 1024  # samples without a token after which none is expected


def draw_shares(
    weights: Float64Array,
    lines: Sequence[Line | None],
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
        balance: [sources] tokens that each has still to give, from the steps before.
        means: [sources] mean length of what each gave so far; 0 where it gave nothing.
        samples, tokens: what the step is to hold, one of them.

    Returns:
        [sources] samples that each is expected to give; some positive.
    """
    live = np.flatnonzero(weights)
    means = means.copy()
    for source in live[means[live] <= 0]:
        line = _line(lines, source)
        seen = line.lengths(min(line.reach(_SAMPLED), _SAMPLED))
        means[source] = max(float(seen.mean()), 1.0) if len(seen) else 1.0
    if tokens is None:
        assert samples is not None
        tokens_of_step = samples / math.fsum((weights[live] / means[live]).tolist())
    else:
        tokens_of_step = float(tokens)
    wanted = expected_shares(weights, balance, tokens_of_step)
    shares = np.zeros(len(weights))
    for source in live.tolist():
        shares[source] = _samples_worth(_line(lines, source), wanted[source], means[source])
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


def _samples_worth(line: Line, tokens: float, mean: float) -> float:
    """How many of the next samples hold so many tokens, the last one in part."""
    count = math.ceil(tokens / mean * 1.1) + 2
    while True:
        reached = min(line.reach(count), count)
        sums = line.lengths(reached).cumsum()
        if reached < count or (reached and sums[-1] >= tokens):
            break
        if count > _EMPTY and not sums[-1]:
            raise SampleError(
                f"the next {count:,} samples of source {line.name!r} have no tokens, so it can "
                "have no share of them; count another modality, or use unit='samples'"
            )
        count *= 2
    whole = int(sums.searchsorted(tokens, side="right"))
    if whole >= reached:
        return float(reached)
    before = float(sums[whole - 1]) if whole else 0.0
    return whole + (tokens - before) / (float(sums[whole]) - before)


def _line(lines: Sequence[Line | None], source: int) -> Line:
    line = lines[source]
    assert line is not None
    return line
