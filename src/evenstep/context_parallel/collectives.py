"""What context-parallel ranks send each other: rows of equal number, gathered or summed.

Both collectives are one call each, whatever they carry; a backend without reduce-scatter sums by
all-reduce. Where a rank has died the others get a
`PeerError` as soon as the backend tells: Gloo when the connection closes, NCCL when its watchdog
gives up, whose time `init_process_group(timeout=)` sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
import torch.distributed as dist

from evenstep.errors import ConfigurationError, PeerError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Collectives", "Group", "GroupCollectives", "OneRank", "collectives_of"]

Group: TypeAlias = "dist.ProcessGroup | DeviceMesh | None"


class Collectives(Protocol):
    """The context-parallel ranks, as one of them sees them."""

    ranks: int
    rank: int

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        """[ranks x n, ...]: the `rows` [n, ...] of all ranks, in their order."""

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, ...]: of `rows` [ranks x n, ...], summed over ranks, those of this rank. `rows` may
        be overwritten."""


class OneRank:
    """Nobody to send to."""

    ranks = 1
    rank = 0

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class GroupCollectives:
    """Over a process group of torch.distributed."""

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
        rows = rows.contiguous()
        own = rows.new_empty((len(rows) // self.ranks, *rows.shape[1:]))
        with self._explained("summing the gradients of keys and values of"):
            try:
                self._scatter(own, rows, group=self._group)
            except RuntimeError as error:
                # Said by all ranks alike, before anything is sent.
                if "not support" not in str(error):
                    raise
                dist.all_reduce(rows, group=self._group)
                own.copy_(rows[self.rank * len(own) :][: len(own)])
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
                f"another rank has died or left, so look at what it logged ({error})"
            ) from error


def collectives_of(group: Group, ranks: int) -> Collectives:
    """
    Args:
        group: a process group, a device mesh of one dimension, or None for all processes; without
            torch.distributed set up, None is one rank alone.
        ranks: that the plan is for.

    Raises:
        ConfigurationError: torch.distributed is not set up, this process is not in the group, or
            the device mesh has several dimensions.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if group is None and ranks == 1:
            return OneRank()
        raise ConfigurationError(
            f"a plan for {ranks} context-parallel ranks needs torch.distributed; call "
            "torch.distributed.init_process_group() before evenstep.context_parallel.prepare()"
        )
    exchange = GroupCollectives(_process_group(group))
    if exchange.rank < 0:
        raise ConfigurationError(
            f"process {dist.get_rank()} is not in the context-parallel group; pass the group that "
            "it is in"
        )
    return exchange


def _process_group(group: Group) -> dist.ProcessGroup | None:
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(group, DeviceMesh):
        return group
    if group.ndim != 1:
        raise ConfigurationError(
            f"the device mesh has dimensions {group.mesh_dim_names or group.ndim}; pass the one of "
            'context parallelism, as in mesh["cp"]'
        )
    return group.get_group()
