"""Which source each draw of a step comes from: a function of (seed, step, number of the draw).

[0, 1) is divided among the sources in their shares, and each draw has a point in it. The points are
a van der Corput sequence, scrambled differently in each step. Every point by itself is uniform, so
shares are exact on average. Each run of 2**k points whose first number is a multiple of 2**k has
one point in each of 2**k equal parts. So a source's count among n draws differs from its share by
about log2(n) at most, where independent draws differ by the square root of n.

Where the number of draws is known in advance, they are moved apart until one point is in each of so
many equal parts, in the same order. A source's count is then its share, rounded up or down.

Draws of even number lie in one half of [0, 1) and those of odd number in the other, so the draws of
a step are shuffled in the end.

Random numbers are those of Philox 4x32-10 (Salmon et al., 2011): a counter goes in, four words come
out, and nothing is kept in between. So any number can be computed without those before it, and no
version of NumPy changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array

UInt64Array = npt.NDArray[np.uint64]

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FEW, _STEPS = 512, 8
"""So few words are computed for several steps at once, as most of their time goes into calls."""


def philox(counter: UInt64Array, key: int) -> UInt64Array:
    """
    Args:
        counter: [4, n] words below 2**32, the lowest first.
        key: 64 bits.

    Returns:
        [4, n] words below 2**32.
    """
    # Words 0 and 2 are multiplied, 1 and 3 are mixed in; each pair is one array [2, n].
    multiplied, mixed = counter[::2], counter[1::2]
    keys = np.array([[key & 0xFFFFFFFF], [key >> 32 & 0xFFFFFFFF]], np.uint64)
    for _ in range(_ROUNDS):
        product = (multiplied * _MULTIPLIERS)[::-1]
        multiplied = (product >> _HALF) ^ mixed ^ keys
        mixed = product & _LOW
        keys = (keys + _KEY_STEPS) & _LOW
    return np.stack([multiplied[0], mixed[0], multiplied[1], mixed[1]])


def random_words(seed: int, step: int, purpose: int, count: int) -> UInt64Array:
    """[count] words of 64 bits. A smaller count gives the first words of a larger one.

    Args:
        seed, step: integers of at most 64 bits.
        purpose: below 2**32; words of different purposes are independent.
    """
    words: UInt64Array
    if count > _FEW:
        words = _words(seed, step, 1, purpose, count)[0]
    else:
        words = _few_words(seed, step // _STEPS, purpose, count)[step % _STEPS]
    return words


@lru_cache(maxsize=16)
def _few_words(seed: int, number: int, purpose: int, count: int) -> UInt64Array:
    """[steps, count] of so many steps, the `number`-th of them."""
    words = _words(seed, number * _STEPS, _STEPS, purpose, count)
    words.flags.writeable = False
    return words


def _words(seed: int, step: int, steps: int, purpose: int, count: int) -> UInt64Array:
    """[steps, count] of a step and of those after it."""
    blocks = -(-count // 2)
    counter = np.empty((4, steps, blocks), np.uint64)
    counter[0] = np.arange(blocks, dtype=np.uint64)
    counter[1] = purpose
    for number, of_step in enumerate(range(step, step + steps)):
        counter[2, number], counter[3, number] = of_step & 0xFFFFFFFF, of_step >> 32 & 0xFFFFFFFF
    a, b, c, d = philox(counter.reshape(4, -1), seed)
    words = np.stack([a | b << _HALF, c | d << _HALF], axis=1)
    return words.reshape(steps, 2 * blocks)[:, :count]


_POINTS, _ORDER = 1, 2  # purposes of random words
# A bit of y * EVEN depends on the lower bits of y alone, and a bit of y * ODD on them and itself.
# So each bit of the scrambled number depends on no higher bit; and since points are the numbers
# with their bits reversed, points in different parts stay in different parts.
_EVEN = (np.uint64(0x9E3779B97F4A7C14), np.uint64(0x8CB92BA72F3D8DD6))
_ODD = np.uint64(0xD1B54A32D192ED03)
_REVERSED_BYTE = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def points(seed: int, step: int, count: int) -> Float64Array:
    """[count] points in [0, 1) of the first draws of a step."""
    keys = random_words(seed, step, _POINTS, 3)
    value = np.arange(count, dtype=np.uint64) + keys[0]
    value ^= value * _EVEN[0]
    value += keys[1]
    value *= _ODD
    value ^= value * _EVEN[1]
    value += keys[2]
    found: Float64Array = (_reversed(value) >> np.uint64(11)) * 2.0**-53
    return found


def even_points(seed: int, step: int, count: int) -> Float64Array:
    """[count] points in [0, 1) of a step of `count` draws, all equally far apart.

    Points 0.3, 0.8, 0.1 of `points`, and an offset of 0.6, give (1.6, 2.6, 0.6) / 3.
    """
    at = points(seed, step, count + 1)
    rank = np.empty(count, np.int64)
    rank[at[:-1].argsort(kind="stable")] = np.arange(count)
    found: Float64Array = (rank + at[-1]) / count
    return found


def labels(at: Float64Array, shares: Float64Array) -> Int64Array:
    """[points] the source at each point.

    Args:
        at: [points] in [0, 1).
        shares: [sources] not negative, in any unit, some positive. A source of 0 is never drawn.
    """
    edges: Float64Array = shares.cumsum()
    edges /= edges[-1]
    edges[np.flatnonzero(shares)[-1] :] = 1.0  # the last source gets what rounding lost
    return edges.searchsorted(at, side="right").astype(np.int64, copy=False)


def shuffled(drawn: Int64Array, seed: int, step: int) -> Int64Array:
    """The draws of a whole step in another order."""
    return drawn[random_words(seed, step, _ORDER, len(drawn)).argsort(kind="stable")]


def _reversed(value: UInt64Array) -> UInt64Array:
    """Each number with its bits in reverse order."""
    reversed_numbers: UInt64Array = _REVERSED_BYTE[value.byteswap().view(np.uint8)].view(np.uint64)
    return reversed_numbers


def sequence(
    seed: int,
    step: int,
    count: int,
    phases: Sequence[tuple[int, Float64Array]],
    *,
    samples: int | None,
) -> Int64Array:
    """[count] sources of a step's first draws, before they are shuffled.

    Args:
        phases: first draw of each, and [sources] shares from there on.
        samples: draws of the whole step; None if that is not known in advance.
    """
    at = points(seed, step, count) if samples is None else even_points(seed, step, samples)[:count]
    ends = [*(begin for begin, _ in phases), count]
    parts = [
        labels(at[begin:end], shares) for (begin, end), (_, shares) in zip(pairwise(ends), phases)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def runs_of(positions: Int64Array, counts: Int64Array) -> list[tuple[tuple[int, int], ...]]:
    """[groups] ascending positions as runs (first, last + 1).

    ``runs_of([3, 4, 7, 0, 1], [3, 2])`` is ``[((3, 5), (7, 8)), ((0, 2),)]``.

    Args:
        positions: [sum of counts] of one group after the other.
        counts: [groups] positions of each, at least 1.
    """
    ends = counts.cumsum()
    new_run = np.ones(len(positions), np.bool_)  # [sum of counts]
    new_run[1:] = np.diff(positions) != 1
    new_run[ends[:-1]] = True
    begins = np.flatnonzero(new_run)  # [runs]
    lasts = np.append(begins, len(positions))[1:] - 1  # [runs]
    spans = list(zip(positions[begins].tolist(), (positions[lasts] + 1).tolist()))
    cuts = [0, *begins.searchsorted(ends).tolist()]
    return [tuple(spans[a:b]) for a, b in pairwise(cuts)]
