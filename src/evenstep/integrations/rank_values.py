"""Small values between the trainer's ranks: JSON in tensors, so that nothing received is unpickled.

Every function is collective: all ranks of the group call it, and the default group is that of the
trainer.

A loader's state in a trainer's checkpoint holds the parts of all ranks in one. Such a state resumes
on any number of ranks: exactly on as many, and with every remaining sample once on others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, described
from evenstep.files import read_json, write_whole
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


def gather_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """On rank 0, one state with the parts of all ranks; on other ranks their own. All ranks call
    it."""
    states = at_rank_0(dict(state)) or [state]
    return {key: value for one in states for key, value in one.items()}


def all_parts(state: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """On all ranks of `group`, one state with the parts of all of them, which all call it."""
    return {key: value for one in of_all_ranks(dict(state), group) for key, value in one.items()}


def save_state(folder: str | os.PathLike[str], name: str, state: Mapping[str, Any]) -> None:
    """Writes ``<name>.json`` with the parts of all ranks. All ranks call it; rank 0 writes.

    Raises:
        ConfigurationError: on all ranks, that it cannot be written.
    """
    whole = gather_state(state)
    path = Path(folder) / f"{name}.json"
    by_rank_0(lambda: write_whole(path, json.dumps(whole)), ConfigurationError)


def read_state(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """What `save_state` wrote. All ranks call it; rank 0 reads.

    Raises:
        MismatchError: on all ranks, that the checkpoint has no such file, or a damaged one.
    """
    path = Path(folder) / f"{name}.json"

    def read() -> dict[str, Any]:
        if not path.exists():
            raise MismatchError(
                f"the checkpoint {folder} has no {path.name}: it was saved without evenstep, and "
                "does not say where the data was; begin a new run from its model"
            )
        state: dict[str, Any] = read_json(path, again="resume from another checkpoint")
        return state

    return by_rank_0(read, MismatchError)
