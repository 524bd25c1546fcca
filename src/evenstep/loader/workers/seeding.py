"""Random state in workers and batcher, as a function of (seed, epoch) and the rank or sample alone.

What a dataset draws at random while a worker prepares a sample depends on the sample's index, not
on the worker or on what it prepared before. So random augmentation is the same for any number of
workers, and after a resume. (A dataset that fetches several samples at once, by ``__getitems__``,
is seeded once for all of them, so its draws depend on the chunk.)
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np

# NumPy would import these when they are first used. In a process that is forked while a thread
# imports one of them, that import hangs or recurses.
import numpy.ma
import numpy.random
import torch

_MIX = 1_000_003
_LIMIT = 1 << 63  # torch takes 64 bits


def epoch_seed(seed: int, epoch: int) -> int:
    return (seed * _MIX + epoch) % _LIMIT


def rank_seed(seed: int, epoch: int, rank: int) -> int:
    """Seed for draws of a rank that belong to no sample, such as those of ``collate_fn``."""
    return (epoch_seed(seed, epoch) * _MIX + rank) % _LIMIT


def sample_seed(of_epoch: int, index: Any) -> int:
    """Seed for preparing one sample.

    Args:
        of_epoch: from `epoch_seed`.
        index: dataset index.
    """
    return (of_epoch * _MIX + zlib.crc32(repr(index).encode())) % _LIMIT


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's CPU random state of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
