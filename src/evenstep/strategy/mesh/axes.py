"""Axes of a mesh and coordinates on them, under the names that frameworks give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError

AXES = ("PP", "DP", "CP", "TP")
"""Axes of a mesh, outermost first."""

WORLD = "WORLD"
"""All axes together: every client."""

DIVIDING_AXES = ("DP", "CP", "TP", WORLD)
"""Axes that data can be divided at."""

# Dimension names of torchtitan's meshes, and the axis that each is part of. Those that join
# data-parallel with context-parallel ranks, as "fsdp" does, do not determine which rank needs what.
_TORCH_NAMES = {
    "pp": "PP",
    "dp": "DP",
    "batch": "DP",
    "dp_replicate": "DP",
    "dp_shard": "DP",
    "dp_shard_mod_ep": "DP",
    "dp_shard_in_ep": "DP",
    "cp": "CP",
    "tp": "TP",
}


@dataclass(frozen=True, order=True)
class Place:
    """Coordinates of a client."""

    PP: int = 0
    DP: int = 0
    CP: int = 0
    TP: int = 0

    def __str__(self) -> str:
        return " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)


def check_axis(axis: object, known: Sequence[str]) -> None:
    """Raises `ConfigurationError` for an axis that is not in `known`."""
    if axis not in known:
        raise ConfigurationError(f"axis {axis!r} must be one of {tuple(known)}")


def axis_named(name: str) -> str:
    """The axis that a dimension of a DeviceMesh is, or is part of.

    Raises:
        ConfigurationError: the name is unknown.
    """
    axis = name if name in AXES else _TORCH_NAMES.get(name)
    if axis is None:
        raise ConfigurationError(
            f"dimension {name!r} of the DeviceMesh is not one of {(*_TORCH_NAMES, *AXES)}; give "
            "the mesh of the dimensions that determine which rank needs which data, such as pp, "
            "batch, cp and tp"
        )
    return axis


def in_order(ranks: Int64Array, axes: Sequence[str]) -> Int64Array:
    """[PP, DP, CP, TP] from an array with these axes in any order. An axis that occurs twice, as
    the two halves of DP do, becomes one, with the first occurrence outermost."""
    order = sorted(range(len(axes)), key=lambda dimension: AXES.index(axes[dimension]))
    shape = [1] * len(AXES)
    for axis, size in zip(axes, ranks.shape):
        shape[AXES.index(axis)] *= size
    return np.ascontiguousarray(ranks.transpose(order).reshape(shape))
