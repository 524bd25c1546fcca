"""Checks of options, where an object is built from them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from evenstep.errors import ConfigurationError, WrongTypeError

LARGEST = 2**48
"""No option is larger but a seed: sums and products of a few of them then fit in an int64."""
_LARGEST_SEED = 2**64 - 1


def check_given(**values: object) -> None:
    """Raises `ConfigurationError` for the first value that is None."""
    for name, value in values.items():
        if value is None:
            raise ConfigurationError(f"{name}=None must be an integer; it has no default")


def check_at_least(minimum: int, **values: int | None) -> None:
    """Raises `ConfigurationError` for the first value that is not an integer, is below `minimum` or
    above `LARGEST`. None, which stands for no limit, passes.
    """
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise WrongTypeError(f"{name}={value!r} must be an integer")
        if value < minimum:
            raise ConfigurationError(f"{name}={value} must be at least {minimum}")
        most = _LARGEST_SEED if name == "seed" else LARGEST
        if value > most:
            raise ConfigurationError(f"{name}={value} must be at most {most:,}")


def check_one_of(choices: Iterable[str], **values: object) -> None:
    """Raises `ConfigurationError` for the first value that is none of the choices."""
    known = list(choices)
    for name, value in values.items():
        if value not in known:
            raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(known)}")


def check_seconds(zero: str, **seconds: float | None) -> None:
    """Raises `ConfigurationError` for the first value that is negative or NaN. None passes.

    Args:
        zero: what 0 does.
    """
    for name, value in seconds.items():
        if value is not None and not value >= 0:
            raise ConfigurationError(f"{name}={value} must not be negative; 0 {zero}")
