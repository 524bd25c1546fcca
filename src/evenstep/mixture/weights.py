"""Weights of sources by name: numbers from 0 in any unit, of which some are positive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.errors import ConfigurationError

Weights = Mapping[str, float]


def check_weights(given: Any, of: str) -> dict[str, float]:
    """A copy with plain numbers.

    Args:
        of: their name in errors, such as ``weights of step 7``.

    Raises:
        ConfigurationError: not a mapping from names to finite numbers from 0, or no positive one.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{of} are {given!r}; give a mapping from names of sources to numbers, such as "
            '{"code": 0.3, "web": 0.7}'
        )
    weights = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"{of} have the key {name!r}; keys are names of sources")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ConfigurationError(f"{of}: {name}={value!r} must be a number from 0")
        number = float(value)
        if not math.isfinite(number) or number < 0:
            raise ConfigurationError(
                f"{of}: {name}={number} must be a finite number from 0; 0 draws nothing from it"
            )
        weights[name] = number
    try:
        total = math.fsum(weights.values())
    except OverflowError:
        total = math.inf
    if not total > 0 or not math.isfinite(total):
        raise ConfigurationError(
            f"{of} sum to {total}, so nothing can be drawn; give at least one source a "
            "positive weight, and all of them a finite sum"
        )
    return weights


def check_names(names: Iterable[str], sources: Sequence[str], of: str) -> None:
    """
    Raises:
        ConfigurationError: a name that no source has.
    """
    known = set(sources)
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(list(sources)[:20]) + (", ..." if len(sources) > 20 else "")
        raise ConfigurationError(
            f"{of} name {', '.join(map(repr, unknown[:5]))}, which is not a source; the sources "
            f"are {shown}"
        )


def normalised(weights: Weights) -> dict[str, float]:
    """Weights with a sum of 1."""
    total = math.fsum(weights.values())
    return {name: value / total for name, value in weights.items()}


def in_order(weights: Weights, sources: Sequence[str]) -> Float64Array:
    """[sources] weights with a sum of 1; 0 for a source that is not named."""
    values = [weights.get(name, 0.0) for name in sources]
    return np.array(values, np.float64) / math.fsum(values)
