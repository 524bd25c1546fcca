"""Random state as a function of (seed, epoch), of the rank or of the sample, and of nothing else.

What a dataset draws while it prepares a sample in a worker depends on the sample's index, and not
on which worker prepares it or what it has prepared before. So random augmentation is the same for
any number of workers, and after a resume. (A dataset that fetches several samples at once, by
``__getitems__``, is seeded once for all of them, so there it depends on the chunk.)
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import numpy.random  # now, since a worker forked while a thread loads it waits for ever
import torch

__all__ = ["epoch_seed", "rank_seed", "sample_seed", "seed_everything"]

_MIX = 1_000_003
_LIMIT = 1 << 63  # torch takes 64 bits


def epoch_seed(seed: int, epoch: int) -> int:
    return (seed * _MIX + epoch) % _LIMIT


def rank_seed(seed: int, epoch: int, rank: int) -> int:
    """For what is drawn on a rank apart from samples: in ``collate_fn``, say."""
    return (epoch_seed(seed, epoch) * _MIX + rank) % _LIMIT


def sample_seed(of_epoch: int, index: Any) -> int:
    """
    Args:
        of_epoch: `epoch_seed`.
        index: of the dataset.
    """
    return (of_epoch * _MIX + zlib.crc32(repr(index).encode())) % _LIMIT


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's CPU random state of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
