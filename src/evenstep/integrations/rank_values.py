"""Small values between the trainer's ranks: JSON in tensors, so that nothing received is unpickled.

Every function is collective: all ranks of the group call it, and the default group is that of the
trainer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from evenstep.errors import ConfigurationError, EvenstepError, described
from evenstep.loader.transport.rank_exchange import device_of

Value = TypeVar("Value")


def ranks() -> tuple[int, int]:
    """This process's rank in the default group, and the size of that group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_ranks(trainer: str, averaging: int, sharing: int | None = None) -> None:
    """
    Args:
        averaging: ranks over which the trainer averages gradients.
        sharing: ranks that share the data; None is all of the default group.

    Raises:
        ConfigurationError: they are not the same.
    """
    sharing = ranks()[1] if sharing is None else sharing
    if averaging != sharing:
        raise ConfigurationError(
            f"{trainer} averages gradients over {averaging} ranks, and {sharing} share the data; "
            f"start the job as {trainer} wants it, on a CPU with its option for CPUs, and give the "
            "loader the group of the data-parallel ranks where there are others"
        )


def of_all_ranks(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks of `group`, in their order."""
    return [value] if ranks()[1] == 1 else _exchanged(value, group, to_all=True)


def at_rank_0(value: Any) -> list[Any]:
    """On rank 0 the values of all ranks, in their order; empty on others."""
    return [value] if ranks()[1] == 1 else _exchanged(value, None, to_all=False)


def from_rank_0(value: Any) -> Any:
    """The `value` of rank 0."""
    rank, world_size = ranks()
    if world_size == 1:
        return value
    data = _encoded(value if rank == 0 else None, None)
    size = torch.tensor([len(data)], device=data.device)
    dist.broadcast(size, 0)
    data = data if rank == 0 else data.new_empty(int(size))
    dist.broadcast(data, 0)
    return _decoded(data)


def by_rank_0(function: Callable[[], Value], kind: type[EvenstepError]) -> Value:
    """What `function` returns on rank 0, which alone runs it.

    Raises:
        kind: on all ranks, what it raised there.
    """
    value: Any = None
    problem = None
    cause = None
    if ranks()[0] == 0:
        try:
            value = function()
        except Exception as error:
            problem = str(error) if isinstance(error, EvenstepError) else described(error)
            cause = error
    value, problem = from_rank_0([value, problem])
    if problem is not None:
        raise kind(problem) from cause
    result: Value = value
    return result


def _exchanged(value: Any, group: dist.ProcessGroup | None, *, to_all: bool) -> list[Any]:
    """The values of all ranks, on all or on rank 0."""
    own = _encoded(value, group)
    gathered = [
        torch.empty(1, dtype=torch.int64, device=own.device)
        for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(gathered, torch.tensor([len(own)], device=own.device), group)
    sizes = [int(one) for one in gathered]
    padded = own.new_zeros(max(sizes))
    padded[: len(own)] = own
    parts: list[torch.Tensor] | None = [torch.empty_like(padded) for _ in sizes]
    if to_all:
        dist.all_gather(parts, padded, group)
    else:
        parts = parts if ranks()[0] == 0 else None
        dist.gather(padded, parts)
    return [_decoded(part[:size]) for part, size in zip(parts or [], sizes)]


def _encoded(value: Any, group: dist.ProcessGroup | None) -> torch.Tensor:
    """[bytes] uint8."""
    data = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
    return torch.from_numpy(data).to(device_of(group))


def _decoded(data: torch.Tensor) -> Any:
    return json.loads(data.cpu().numpy().tobytes())
