"""Which source each draw of a step comes from: a function of (seed, step, number of the draw).

Each draw has a point in [0, 1), which is divided among the sources in their shares. The points are
a van der Corput sequence that is scrambled anew for each step: every point by itself is uniform, so
shares are exact on average; and each run of 2**k points whose first number is a multiple of 2**k
has one in each of 2**k equal parts, so that a source's count among n draws differs from its share
by about log2(n) at most, where independent draws differ by the square root of n.

In the end the draws of a step are shuffled, since those of even number lie in one half of [0, 1)
and those of odd number in the other.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.strategy.mixture.counter import UInt64Array, random_words

__all__ = ["labels", "points", "shuffled"]


_POINTS, _ORDER = 1, 2  # what random words are for
# A bit of y * EVEN depends on the lower bits of y alone, and one of y * ODD on them and itself. So
# do those of the scrambled number, and, bits reversed, points stay in different parts.
_EVEN = (np.uint64(0x9E3779B97F4A7C14), np.uint64(0x8CB92BA72F3D8DD6))
_ODD = np.uint64(0xD1B54A32D192ED03)
_SWAPS = tuple(
    (np.uint64(width), np.uint64(mask))
    for width, mask in (
        (1, 0x5555555555555555),
        (2, 0x3333333333333333),
        (4, 0x0F0F0F0F0F0F0F0F),
        (8, 0x00FF00FF00FF00FF),
        (16, 0x0000FFFF0000FFFF),
        (32, 0x00000000FFFFFFFF),
    )
)


def points(seed: int, step: int, count: int) -> Float64Array:
    """[count] in [0, 1), of the first draws of a step."""
    keys = random_words(seed, step, _POINTS, 3)
    value = np.arange(count, dtype=np.uint64) + keys[0]
    value ^= value * _EVEN[0]
    value += keys[1]
    value *= _ODD
    value ^= value * _EVEN[1]
    value += keys[2]
    found: Float64Array = (_reversed(value) >> np.uint64(11)) * 2.0**-53
    return found


def labels(at: Float64Array, shares: Float64Array) -> Int64Array:
    """The source at each point.

    Args:
        shares: [sources] not negative, in any unit, some positive. One of 0 is never drawn.
    """
    edges: Float64Array = shares.cumsum()
    edges /= edges[-1]
    edges[np.flatnonzero(shares)[-1] :] = 1.0  # whatever was lost by rounding
    return edges.searchsorted(at, side="right").astype(np.int64, copy=False)


def shuffled(drawn: Int64Array, seed: int, step: int) -> Int64Array:
    """The draws of a whole step in another order."""
    return drawn[random_words(seed, step, _ORDER, len(drawn)).argsort(kind="stable")]


def _reversed(value: UInt64Array) -> UInt64Array:
    """Bits of each number from the last to the first."""
    for width, mask in _SWAPS:
        value = (value >> width & mask) | (value & mask) << width
    return value
