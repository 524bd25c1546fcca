"""Reads the states of all ranks out of a checkpoint of ``torch.distributed.checkpoint``.

A rank that loads such a checkpoint gets its own part only. To resume on another number of ranks,
every rank needs the parts of all.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, described


def read_states(checkpoint: str | os.PathLike[str], key: str = "loader") -> dict[str, Any]:
    """One state with the parts of all ranks, for `DataLoader.load_state_dict` on any number of
    ranks.

    Args:
        checkpoint: folder written by ``torch.distributed.checkpoint.save``.
        key: the key under which the loader's state was saved; with dots where it was nested.

    Raises:
        MismatchError: the checkpoint has nothing under `key`.
        ConfigurationError: there is no checkpoint, or it is damaged.
    """
    # Imported here because it takes a second.
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return _read(checkpoint, f"{key}.")
    except EvenstepError:
        raise
    except CheckpointException as error:  # which is not an Exception
        causes = [described(cause) for cause, _ in error.failures.values()]
        raise _unreadable(checkpoint, "; ".join(causes)) from error
    except Exception as error:  # of a damaged pickle, whatever it names
        raise _unreadable(checkpoint, described(error)) from error


def _read(checkpoint: str | os.PathLike[str], prefix: str) -> dict[str, Any]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(checkpoint)
    metadata = reader.read_metadata()
    found: dict[str, Any] = {
        name: None for name in metadata.state_dict_metadata if name.startswith(prefix)
    }
    if not found:
        some = sorted({name.split(".")[0] for name in metadata.state_dict_metadata})
        raise MismatchError(
            f"the checkpoint {os.fspath(checkpoint)} has nothing under {prefix[:-1]!r}, only under "
            f"{some}; give the key under which the loader was saved"
        )
    with warnings.catch_warnings():
        # Each rank reads by itself on purpose.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(found, storage_reader=reader, no_dist=True)
    state: dict[str, Any] = {}
    for name, value in found.items():
        inner = state
        *outer, last = name.removeprefix(prefix).split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return state


def _unreadable(checkpoint: str | os.PathLike[str], why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint {os.fspath(checkpoint)} cannot be read: {why}; give the whole folder that "
        "torch.distributed.checkpoint.save wrote"
    )
