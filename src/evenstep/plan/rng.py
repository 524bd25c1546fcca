"""Random streams: one tag for each independent use of a seed, and the generator that takes it.

The tag is the last word of a generator's key, so two uses of one seed never draw the same numbers.
`enum.unique` refuses a tag that is given twice. Changing a value changes every plan that draws
from its stream.
"""

from __future__ import annotations

import enum

import numpy as np


@enum.unique
class RandomStream(enum.IntEnum):
    """The uses of random numbers."""

    SIMULATED_LENGTHS = 0
    TOKEN_BUDGET_ORDER = 1
    SIMULATED_SHARDS = 3
    EVEN_ORDER = 4
    LENGTH_GROUPED_ORDER = 5
    MAX_TOKENS_ORDER = 6
    SEQUENCE_PACKING_ROUND = 7
    EVEN_SPREAD = 9
    SIMULATED_IMAGES = 10
    SIMULATED_ROLLOUTS = 11
    ADVICE_SAMPLE = 20
    POOL_SORT_ORDER = 21
    ADVICE_EPOCH = 24
    SHARD_ORDER = 41
    SHARD_SAMPLES = 42
    MIXED_STREAM = 43


def generator(*key: int) -> np.random.Generator:
    """A random generator that is a function of `key` alone, on every machine.

    Args:
        key: integers, reduced modulo 2**64; the last is a `RandomStream`.
    """
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([k & (2**64 - 1) for k in key]))
    )
