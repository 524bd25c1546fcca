"""`Mesh`: the trainer's mesh, from sizes or from torch's DeviceMesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.strategy.mesh import ClientPlaceTree


def Mesh(*, world_size: int | None = None, **sizes: int) -> ClientPlaceTree:
    """``Mesh(PP=2, DP=4, CP=2, TP=1)``: the number of ranks along each axis, 1 if left out.

    Args:
        world_size: number of ranks of the job, if known: the mesh must fill it.

    Raises:
        ConfigurationError: an unknown axis, a size below 1, or a mesh that does not fit.
    """
    order = ("PP", "DP", "CP", "TP")
    known = {axis: sizes[axis] for axis in order if axis in sizes}
    rest = {axis: size for axis, size in sizes.items() if axis not in order}
    return ClientPlaceTree.of({**known, **rest}, world_size=world_size)


def mesh_of(given: Any) -> ClientPlaceTree:
    """A tree, a mapping of sizes or torch's DeviceMesh, as a tree.

    Raises:
        ConfigurationError: the value is of another type.
    """
    if isinstance(given, ClientPlaceTree):
        return given
    if isinstance(given, Mapping):
        return Mesh(**given)
    if hasattr(given, "mesh_dim_names"):
        return ClientPlaceTree.of_mesh(given)
    raise ConfigurationError(
        f"mesh is a {type(given).__name__}; give evenstep.service.Mesh(DP=4, ...), or a DeviceMesh"
    )
