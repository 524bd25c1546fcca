"""Random numbers that are a function of (seed, step, purpose, number) alone.

Philox 4x32-10 (Salmon et al., 2011): a counter goes in, four words come out, and nothing is kept in
between. So any number can be computed without those before it, and no version of NumPy changes it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
