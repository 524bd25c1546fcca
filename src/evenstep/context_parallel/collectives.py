"""What context-parallel ranks send each other: equally many rows from each, gathered or summed.

Each collective is one call of the backend. If a rank dies, the others raise `PeerError` as soon as
the backend notices: Gloo when the connection closes, NCCL when its watchdog times out, after the
`timeout` of `init_process_group`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from evenstep.errors import ConfigurationError, PeerError

Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | None"


class Collectives:
    """The collectives of the context-parallel ranks, for one of them: here of a single rank, which
    sends nothing."""

    ranks = 1
    rank = 0

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the `rows` [n, ...] of all ranks, in their order: [ranks x n, ...]."""
        return rows

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Sums `rows` [ranks x n, ...] over ranks and returns the part of this rank: [n, ...].
        `rows` may be overwritten."""
        return rows


class GroupCollectives(Collectives):
    """Collectives over a process group of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.ranks = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        # Renamed in PyTorch 2.13, where the older names warn.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        gathered = rows.new_empty((self.ranks * len(rows), *rows.shape[1:]))
        with self._explained("gathering from"):
            self._gather(gathered, rows.contiguous(), group=self._group)
        return gathered

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        own = rows.new_empty((len(rows) // self.ranks, *rows.shape[1:]))
        with self._explained("summing the gradients of keys and values of"):
            self._scatter(own, rows.contiguous(), group=self._group)
        return own

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise PeerError(
                f"{what} the {self.ranks} context-parallel ranks failed on rank {self.rank}; "
                f"another rank has died or left: see its log ({error})"
            ) from error


def collectives_of(group: Group, ranks: int) -> Collectives:
    """Makes the collectives of a group.

    Args:
        group: a process group, a device mesh of one dimension, or None for all processes. Without
            torch.distributed set up, None is a single rank.
        ranks: ranks that the sequence is cut over.

    Raises:
        ConfigurationError: torch.distributed is not set up, this process is not in the group, or
            the device mesh has several dimensions.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if group is None and ranks == 1:
            return Collectives()
        raise ConfigurationError(
            f"a sharding for {ranks} context-parallel ranks needs torch.distributed; call "
            "torch.distributed.init_process_group() before evenstep.context_parallel.prepare()"
        )
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ConfigurationError(
                f"the device mesh has dimensions {group.mesh_dim_names or group.ndim}; pass the "
                'one of context parallelism, as in mesh["cp"]'
            )
        group = group.get_group()
    collectives = GroupCollectives(group)
    if collectives.rank < 0:
        raise ConfigurationError(
            f"process {dist.get_rank()} is not in the context-parallel group; pass the one it is in"
        )
    return collectives
