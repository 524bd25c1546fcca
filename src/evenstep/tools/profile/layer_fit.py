"""Fits coefficients to the seconds of both parts of a layer.

Attention over a document of l tokens takes ``max(a, a0 + a1 l + a2 l²)`` seconds and the rest
``max(r, r0 + r1 l)``. The floors a and r are what launches take: a GPU computes short documents
faster than their operations are launched. No coefficient is negative, and r0 is at most half of the
rest at the longest length measured. So where even that length is on the floor, a token takes the
floor over as many tokens, or half of it: too much, but never 0.

The parts are fitted separately: in their sum, a rest that gets faster per token as matrices grow
would look like less attention. Errors are relative to the whole layer at that length, so that short
documents count as much as long ones, and the launch overhead of their attention only as much as it
matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost import FittedCost
from evenstep.cost.fitting import not_negative
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
    floors: tuple[float, float] = (0.0, 0.0)
    """What attention and the rest take at least; 0 where no length was so short."""

    def cost(self, layers: int) -> FittedCost:
        """Cost of a model with this number of equal layers, of groups above the floor."""
        overhead, token, pair = self.attention
        return FittedCost(
            per_group=layers * (overhead + self.rest[0]),
            per_token=layers * (token + self.rest[1]),
            per_pair=layers * pair,
        )


def fit_parts(lengths: npt.ArrayLike, attention: npt.ArrayLike, rest: npt.ArrayLike) -> PartFits:
    """Fits both parts of a layer.

    Args:
        lengths: [lengths] tokens, ascending.
        attention, rest: [lengths] seconds at each, positive.

    Raises:
        ConfigurationError: fewer than four lengths.
    """
    length, first, second = (
        np.asarray(values, dtype=np.float64) for values in (lengths, attention, rest)
    )
    if len(length) < _FEWEST_LENGTHS:
        raise ConfigurationError(
            f"{len(length)} lengths were measured, and a fit needs {_FEWEST_LENGTHS}; give more "
            "--seconds, or a smaller --max-length"
        )
    whole, unit = first + second, length / length.max()  # powers of `unit` are of similar size
    a, (a1, a0, a2) = _above_a_floor([unit, unit**0, unit**2], first, whole)
    r, (r1, r0) = _above_a_floor([unit, 1 + unit], second, whole)
    _, token, pair = (float(value) for value in length.max() ** -np.arange(3.0))
    return PartFits(
        attention=(a0, a1 * token, a2 * pair), rest=(r0, (r0 + r1) * token), floors=(a, r)
    )


def _above_a_floor(
    terms: list[Float64Array], seconds: Float64Array, whole: Float64Array
) -> tuple[float, list[float]]:
    """The floor, and the coefficients of `terms` ([lengths] each) above it.

    Tries each number of lengths as those on the floor, which is their median: one slow measurement
    does not raise it.
    """
    columns = np.stack(terms, axis=1)
    found: list[tuple[float, float, Float64Array]] = []
    for on_floor in range(len(seconds)):
        floor = float(np.median(seconds[:on_floor])) if on_floor else 0.0
        above, scale = slice(on_floor, None), whole[on_floor:]
        solution = not_negative(columns[above] / scale[:, None], seconds[above] / scale)
        error = (np.maximum(floor, columns @ solution) - seconds) / whole
        found.append((float(error @ error), floor, solution))
    _, floor, solution = min(found, key=lambda each: round(each[0], 20))  # the first of equals
    solution[solution < _NOTHING * seconds.max()] = 0
    return floor, [float(value) for value in solution]
