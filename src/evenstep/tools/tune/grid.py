"""The values of `max_tokens` to try."""

from __future__ import annotations

from collections.abc import Iterable

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least


def grid_upward(mean_length: float, up_to: int) -> list[int]:
    """Powers of two and the values halfway between them, from twice the mean length up to `up_to`,
    which is the last one.

    Each value is a third to a half larger than the one before. Near its top, throughput changes by
    a few per cent between them (ODB, Table 2), and a short run cannot distinguish finer ones.

    Raises:
        ConfigurationError: `up_to` is less than twice the mean length.
    """
    if not mean_length > 0:
        raise ConfigurationError(f"mean length {mean_length} must be positive")
    check_at_least(1, up_to=up_to)
    lowest = 2 * mean_length
    if up_to < lowest:
        raise ConfigurationError(
            f"up_to={up_to:,} is less than twice the mean length of {mean_length:,.0f}, where a "
            "search begins; give a larger value, or the grid itself"
        )
    anchors = [1 << power for power in range(up_to.bit_length())]
    values = {*anchors, *(3 * anchor // 2 for anchor in anchors)}
    return sorted({value for value in values if lowest <= value < up_to} | {up_to})


def check_grid(values: Iterable[int]) -> list[int]:
    """The values sorted upward, each once.

    Raises:
        ConfigurationError: there are no values, or one is not a positive integer.
    """
    grid = list(values)
    if not grid:
        raise ConfigurationError("the grid is empty; give at least one value of max_tokens")
    for value in grid:
        check_at_least(1, max_tokens=value)
    return sorted({int(value) for value in grid})
