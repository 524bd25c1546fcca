"""`fit`: a cost from measured times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.cost.models import FittedCost
from evenstep.errors import ConfigurationError


def fit(
    lengths: npt.ArrayLike, seconds: npt.ArrayLike, *, samples: npt.ArrayLike = 1
) -> FittedCost:
    """Fits ``seconds = per_group + per_token * n * l + per_pair * n * l²`` with no negative
    coefficient, minimising relative error, so that short groups count as much as long ones.

    Args:
        lengths: [measurements] tokens per sample of each timed group.
        seconds: [measurements] measured time of each group, positive.
        samples: [measurements] or scalar; samples per timed group.

    Raises:
        ConfigurationError: fewer than three measurements, values that are not positive and finite,
            or arrays that do not match.
        ImportError: SciPy is not installed (``pip install 'evenstep[fit]'``).
    """
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as error:
        raise ImportError("evenstep.cost.fit needs SciPy: pip install 'evenstep[fit]'") from error

    length = np.atleast_1d(np.asarray(lengths, dtype=np.float64))
    second = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    sample = np.asarray(samples, dtype=np.float64)
    if length.shape != second.shape or length.ndim != 1 or len(length) < 3:
        raise ConfigurationError(
            f"need at least three (length, seconds) pairs of equal number, got {length.shape} "
            f"lengths and {second.shape} seconds"
        )
    if sample.shape not in ((), length.shape):
        raise ConfigurationError(
            f"samples of shape {sample.shape} must be one number, or one for each of the "
            f"{len(length)} lengths"
        )
    sample = np.broadcast_to(sample, length.shape)
    for name, values in (("lengths", length), ("seconds", second), ("samples", sample)):
        wrong = values[~(np.isfinite(values) & (values > 0))]
        if len(wrong):
            raise ConfigurationError(f"{name} must be positive and finite, got {wrong[0]}")
    tokens = sample * length
    columns = np.stack([np.ones_like(length), tokens, tokens * length], axis=1) / second[:, None]
    scale = columns.max(axis=0)  # columns differ by many orders of magnitude
    solution = nnls(columns / scale, np.ones_like(length))[0] / scale
    per_group, per_token, per_pair = (float(value) for value in solution)
    return FittedCost(per_group=per_group, per_token=per_token, per_pair=per_pair)
