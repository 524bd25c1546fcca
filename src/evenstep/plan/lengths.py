"""Checks of lengths that are planned by as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError

MAX_LENGTH = 2**31 - 1
"""Planners keep a length and a position in one int64."""


def check_lengths(given: npt.ArrayLike, name: str = "lengths=") -> Int64Array:
    """[samples] a copy of lengths in tokens.

    Args:
        name: that an error gives them.

    Raises:
        ConfigurationError: not one dimension of integers, none at all, or one out of range.
    """
    values = np.asarray(given)
    if values.ndim != 1:
        raise ConfigurationError(f"{name} has shape {values.shape}; it must have one dimension")
    if not len(values):
        raise ConfigurationError(f"{name} holds no lengths")
    if values.dtype.kind not in "iu":
        raise not_integers(name, values.dtype)
    too_long = MAX_LENGTH + 1
    for bad, limit in ((values < 1, "at least 1"), (values >= too_long, f"below {too_long:,}")):
        if bad.any():
            first = int(np.argmax(bad))
            raise ConfigurationError(
                f"{name} has {int(bad.sum()):,} lengths that are not {limit}, the first "
                f"of them {values[first]} at position {first}; remove these samples"
            )
    return values.astype(np.int64)


def not_integers(name: str, kind: object) -> ConfigurationError:
    return ConfigurationError(
        f"{name} holds {kind}; lengths must be integers: the tokens of each sample"
    )
