"""Checks of options, where an object is built from them."""

from __future__ import annotations

import numpy as np

from evenstep.errors import ConfigurationError


def check_given(**values: object) -> None:
    """Raises `ConfigurationError` for the first value that is None."""
    for name, value in values.items():
        if value is None:
            raise ConfigurationError(f"{name}=None must be an integer; it has no default")


def check_at_least(minimum: int, **values: int | None) -> None:
    """Raises `ConfigurationError` for the first value that is not an integer, or is below
    `minimum`. None, which stands for no limit, passes.
    """
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ConfigurationError(f"{name}={value!r} must be an integer")
        if value < minimum:
            raise ConfigurationError(f"{name}={value} must be at least {minimum}")
