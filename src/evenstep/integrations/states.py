"""A loader's state in a trainer's checkpoint: the parts of all ranks in one.

Such a state resumes on any number of ranks: exactly on as many, and with every remaining sample
once on others. Functions that say so are collective: all ranks call them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from evenstep.errors import ConfigurationError, MismatchError
from evenstep.files import read_json, write_whole
from evenstep.integrations.rank_values import at_rank_0, by_rank_0, of_all_ranks


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
