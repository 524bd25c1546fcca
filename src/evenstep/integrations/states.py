"""A loader's state in a trainer's checkpoint: the parts of all ranks in one.

Such a state resumes on any number of ranks: exactly on as many, and with every remaining sample
once on others. Functions that say so are collective: all ranks call them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, described
from evenstep.files import read_json, write_whole

Value = TypeVar("Value")


def ranks() -> tuple[int, int]:
    """This process's rank in the default group, and the size of that group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """On rank 0, one state with the parts of all ranks; on other ranks their own. All ranks call
    it."""
    rank, world_size = ranks()
    if world_size == 1:
        return dict(state)
    states: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(dict(state), states)
    return {key: value for one in states or [state] for key, value in one.items()}


def all_parts(state: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """On all ranks of `group`, one state with the parts of all of them, which all call it."""
    if ranks()[1] == 1:
        return dict(state)
    states: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(states, dict(state), group)
    return {key: value for one in states for key, value in one.items()}


def from_rank_0(value: Any) -> Any:
    """The `value` of rank 0. All ranks call it."""
    if ranks()[1] == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def by_rank_0(function: Callable[[], Value], kind: type[EvenstepError]) -> Value:
    """What `function` returns on rank 0, which alone runs it. All ranks call this.

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
    value, problem = from_rank_0((value, problem))
    if problem is not None:
        raise kind(problem) from cause
    return value


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
        return read_json(path, again="resume from another checkpoint")

    return by_rank_0(read, MismatchError)
