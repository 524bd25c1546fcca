"""Checks of lengths that are planned by as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError

MAX_LENGTH = 2**31 - 1
"""Planners keep a length and a position in one int64."""


def checked_lengths(given: npt.ArrayLike) -> Int64Array:
    """A copy of lengths in tokens, [samples].

    Raises:
        ConfigurationError: the array is not one-dimensional, not of integers, or empty; or a length
            is out of range.
    """
    lengths = np.asarray(given)
    if lengths.ndim != 1 or not len(lengths) or lengths.dtype.kind not in "iu":
        raise ConfigurationError(
            f"lengths of shape {lengths.shape} and type {lengths.dtype} must be one dimension of "
            "integers, one for each sample"
        )
    wrong = np.flatnonzero((lengths < 1) | (lengths > MAX_LENGTH))
    if len(wrong):
        raise ConfigurationError(
            f"{len(wrong):,} lengths are not from 1 to {MAX_LENGTH:,}, the first of them "
            f"{lengths[wrong[0]]} at position {wrong[0]}; remove these samples first"
        )
    return np.array(lengths, np.int64)
