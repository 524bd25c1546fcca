"""Fits coefficients to the seconds of both parts of a layer.

Attention over a document of l tokens takes ``a0 + a1 l + a2 l²`` seconds and the rest
``r0 + r1 l``; none of the five coefficients is negative. The parts are fitted separately: in their
sum, a rest that gets faster per token as matrices grow would look like less attention. Errors are
relative to the whole layer at that length, so that short documents count as much as long ones, and
the launch overhead of their attention only as much as it matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError

_FEWEST_LENGTHS = 4
"""One more than the coefficients of attention: a fit to fewer lengths would follow the noise."""

_NOTHING = 1e-6
"""A term below this share of its part at all lengths is rounding, and set to zero."""


@dataclass(frozen=True, kw_only=True)
class PartFits:
    """Seconds of both parts of one layer, as polynomials of the length, lowest power first."""

    attention: tuple[float, float, float]
    rest: tuple[float, float]

    def cost(self, layers: int) -> FittedCost:
        """Cost of a model with this number of equal layers."""
        overhead, token, pair = self.attention
        return FittedCost(
            per_group=layers * (overhead + self.rest[0]),
            per_token=layers * (token + self.rest[1]),
            per_pair=layers * pair,
        )


def fit_parts(lengths: npt.ArrayLike, attention: npt.ArrayLike, rest: npt.ArrayLike) -> PartFits:
    """Fits both parts of a layer.

    Args:
        lengths: [lengths] tokens.
        attention, rest: [lengths] seconds at each, positive.

    Raises:
        ConfigurationError: fewer than four lengths, or arrays that do not match.
    """
    length, first, second = (
        np.asarray(values, dtype=np.float64) for values in (lengths, attention, rest)
    )
    if not (length.shape == first.shape == second.shape and len(np.unique(length)) == len(length)):
        raise ConfigurationError(
            f"{length.shape} lengths, {first.shape} times of attention and {second.shape} of the "
            "rest: give one time of each part for every length, and different lengths"
        )
    if len(length) < _FEWEST_LENGTHS:
        raise ConfigurationError(
            f"{len(length)} lengths were measured, and a fit needs {_FEWEST_LENGTHS}; give more "
            "--seconds, or a smaller --max-length"
        )
    whole = first + second
    a0, a1, a2 = _not_negative(length, first / whole, whole, 3)
    r0, r1 = _not_negative(length, second / whole, whole, 2)
    return PartFits(attention=(a0, a1, a2), rest=(r0, r1))


def _not_negative(
    length: Float64Array, share: Float64Array, whole: Float64Array, terms: int
) -> list[float]:
    """The least-squares polynomial without negative coefficients.

    With at most three terms all subsets can be tried: the solution is the best one whose nonzero
    terms are positive.
    """
    unit = length.max()  # keeps powers of the length of similar size
    columns = (length[:, None] / unit) ** np.arange(terms) / whole[:, None]  # [lengths, terms]
    scale = columns.max(axis=0)
    best, least = np.zeros(terms), float(share @ share)
    for size in range(1, terms + 1):
        for subset in map(list, combinations(range(terms), size)):
            solution = np.linalg.lstsq(columns[:, subset] / scale[subset], share, rcond=None)[0]
            error = columns[:, subset] / scale[subset] @ solution - share
            if (solution >= 0).all() and error @ error < least:
                best, least = np.zeros(terms), float(error @ error)
                best[subset] = solution
    best[best < _NOTHING * share.max()] = 0
    return [float(value) for value in best / scale / unit ** np.arange(terms)]
