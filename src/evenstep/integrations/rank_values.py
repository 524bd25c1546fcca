"""Small values between the trainer's ranks.

Every function is collective: all ranks of the group call it, and the default group is that of the
trainer.

A loader's state in a trainer's checkpoint holds the parts of all ranks in one. Such a state resumes
on any number of ranks: exactly on as many, and with every remaining sample once on others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, described
from evenstep.files import read_json, write_whole

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
            f"start the job as {trainer} wants it, and give the loader the data-parallel group"
        )


def of_all_ranks(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks of `group`, in their order."""
    if ranks()[1] == 1:
        return [value]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found


def gathered(gather: Callable[[Any], Any], value: torch.Tensor, sizes: Sequence[int]) -> Any:
    """Rows of all ranks, by a function that gathers equally many of each.

    Args:
        value: this rank's.
        sizes: [ranks] rows of each.
    """
    if len(set(sizes)) == 1:
        return gather(value)
    room = value.new_zeros((max(sizes), *value.shape[1:]))
    room[: len(value)] = value
    parts = gather(room).split(max(sizes))
    return torch.cat([part[:size] for part, size in zip(parts, sizes)])


def by_rank_0(function: Callable[[], Value], kind: type[EvenstepError]) -> Value:
    """What `function` returns on rank 0, which alone runs it.

    Raises:
        kind: on all ranks, what it raised there.
    """
    value: Any = None
    problem = cause = None
    if ranks()[0] == 0:
        try:
            value = function()
        except Exception as error:
            problem = str(error) if isinstance(error, EvenstepError) else described(error)
            cause = error
    value, problem = of_all_ranks([value, problem])[0]
    if problem is not None:
        raise kind(problem) from cause
    return value


def all_parts(state: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """On all ranks of `group`, one state with the parts of all of them, which all call it."""
    return {key: value for one in of_all_ranks(dict(state), group) for key, value in one.items()}


def save_state(folder: str | os.PathLike[str], name: str, state: Mapping[str, Any]) -> None:
    """Writes ``<name>.json`` with the parts of all ranks. All ranks call it; rank 0 writes.

    Raises:
        ConfigurationError: on all ranks, that it cannot be written.
    """
    whole = all_parts(state)
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
