"""`fit`: a cost from measured times."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost.models import FittedCost
from evenstep.errors import ConfigurationError

_ROUNDING = 1e-24
"""Squared errors that differ by less are the same."""


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
    """
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
    solution = not_negative(columns / scale, np.ones_like(length)) / scale
    per_group, per_token, per_pair = (float(value) for value in solution)
    return FittedCost(per_group=per_group, per_token=per_token, per_pair=per_pair)


def not_negative(columns: Float64Array, target: Float64Array) -> Float64Array:
    """The least-squares solution without a negative value: of several, that with fewest terms, and
    among these the first.

    With few terms all subsets can be tried: it is the best one whose terms are all positive.

    Args:
        columns: [measurements, terms] positive, of similar size.
        target: [measurements] positive, about 1.

    Returns:
        [terms]
    """
    terms, least = columns.shape[1], np.inf
    best = np.zeros(terms)
    for subset in (list(s) for n in range(terms) for s in combinations(range(terms), n + 1)):
        solution = np.linalg.lstsq(columns[:, subset], target, rcond=None)[0]
        error = columns[:, subset] @ solution - target
        if (solution >= 0).all() and error @ error < least - _ROUNDING:
            best, least = np.zeros(terms), float(error @ error)
            best[subset] = solution
    return best
