"""Which rank draws the next samples of an epoch's stream, decided round by round.

Where ranks share one stream, equal counts of samples are unequal work: at the end of an epoch some
rank has more left than the others, and all wait for it. So samples are dealt as ranks use them up.
A rank whose samples are large uses up fewer, and draws fewer. The last ones go to whom holds least,
in ever smaller deals, so that all ranks run out together.

Everything is counted in integers and known to all ranks, so all reach the same deal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What each rank holds between two rounds."""

    samples: Int64Array
    """[ranks] samples in its window."""
    tokens: Int64Array
    """[ranks] their tokens."""
    queued: Int64Array
    """[ranks] samples dealt to it that no window has held."""
    seen_samples: int
    """Samples in the last round's windows of all ranks, to estimate a mean length from."""
    seen_tokens: int
    """Their tokens."""

    @property
    def mean(self) -> tuple[int, int]:
        """The mean length as a fraction: tokens of so many samples, a million or so at most, that
        multiples of it fit 64 bits."""
        shift = max(self.seen_samples.bit_length() - 20, 0)
        return max(self.seen_tokens >> shift, 1), max(self.seen_samples >> shift, 1)


def next_deal(held: Holdings, *, left: int, window: int) -> Int64Array:
    """How many of the next samples each rank draws.

    Ranks are brought to the same number of tokens, a queued sample counting the mean length: a
    window to plan with and, for workers to prepare meanwhile, another one, or half of a rank's
    share of what is left if that is less, as the lengths of queued samples are not known. No deal
    is more than half of what is left. For example, with a mean of 10 tokens and 8 samples left, 4
    are dealt::

        tokens held   30  10  20    -> draws  1  2  1    -> 40 30 30

    Args:
        left: samples of the stream that no rank has drawn.
        window: samples of mean length that a window should hold. No rank draws more than makes two
            windows of samples.

    Returns:
        [ranks] int64, in all at most `left`.
    """
    ranks = len(held.samples)
    tokens, samples = held.mean
    queue = min(window, left // (2 * ranks))
    loads = held.tokens * samples + held.queued * tokens
    free = np.maximum(2 * window - held.samples - held.queued, 0)
    most = left // 2 if left > 2 * ranks else left
    wanted = _below(loads, tokens, (window + queue) * tokens)
    if int(np.minimum(wanted, free).sum()) > most:
        wanted = _leveled(loads, tokens, most)
    dealt: Int64Array = np.minimum(wanted, free)
    return dealt


def next_window(held: Holdings, *, window: int) -> Int64Array:
    """[ranks] how many of its queued samples each rank adds to its window: to bring it to the
    tokens of `window` samples of mean length, but no more samples than that."""
    tokens, samples = held.mean
    wanted = _below(held.tokens * samples, tokens, window * tokens)
    free = np.maximum(window - held.samples, 0)
    found: Int64Array = np.minimum(np.minimum(wanted, free), held.queued)
    return found


def _leveled(loads: Int64Array, unit: int, count: int) -> Int64Array:
    """Deals `count` units, one by one, each to the first rank with the lowest load.

    Args:
        loads: [ranks] int64.
        unit: positive; what one more adds to a load.

    Returns:
        [ranks] units of each.
    """
    low, high = int(loads.min()), int(loads.max()) + unit * (count // len(loads) + 1)
    while low < high:  # the highest level that takes at most `count`
        middle = (low + high + 1) // 2
        if int(_below(loads, unit, middle).sum()) <= count:
            low = middle
        else:
            high = middle - 1
    dealt = _below(loads, unit, low)
    # All loads are at the level or above it; the rest goes to those that are exactly at it.
    rest = count - int(dealt.sum())
    dealt[np.flatnonzero(loads + dealt * unit == low)[:rest]] += 1
    return dealt


def _below(loads: Int64Array, unit: int, level: int) -> Int64Array:
    """[ranks] units until each load has reached the level, or 2**62, which no sum of lengths is
    near."""
    return np.maximum(-((loads - min(level, 2**62)) // unit), 0)


def dealt_entries(counts: Int64Array, rank: int, begin: int) -> Int64Array:
    """The entries of the stream that one rank gets in a deal.

    Ranks draw in turn, as long as they have any to draw: with counts 3, 1, 2 the entries go to
    ranks 0 1 2, 0 2, 0. So with equal counts rank r of W gets every W-th entry.

    Args:
        counts: [ranks] samples that each draws.
        begin: first entry of the deal.

    Returns:
        [counts[rank]] int64, increasing.
    """
    turns = np.arange(int(counts[rank]))
    ordered = np.sort(counts)
    # In turns before this one each rank has drawn min(its count, turn) entries.
    drawn = np.concatenate([[0], ordered.cumsum()])
    done = np.searchsorted(ordered, turns, side="right")  # ranks that have drawn all theirs
    before = drawn[done] + (len(counts) - done) * turns
    earlier = np.sort(counts[:rank])
    ahead = rank - np.searchsorted(earlier, turns, side="right")
    found: Int64Array = begin + before + ahead
    return found
