"""What all roles say of themselves, summed up; and what happened to them, logged by `EventLog`.

A role's `about` is what `RoleWatch` returns.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

from evenstep.files import LineFile
from evenstep.service.remote.handles import RemoteHandle

logger = logging.getLogger("evenstep")


class EventLog:
    """Warnings, and a line of JSON each in a file, with `time`, seconds since 1970, and `event`.
    What is wrong with the log or the file stops nobody who adds to them."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """
        Args:
            path: appended to; None writes nothing.

        Raises:
            ConfigurationError: it cannot be written.
        """
        self._file = None if path is None else LineFile(path)
        self._told = set()
        earlier = path is not None and Path(path).is_file()
        for line in Path(path or "").read_bytes().splitlines() if earlier else ():
            with suppress(ValueError, TypeError, KeyError):  # cut off, or another event
                about = json.loads(line)
                self._told.add((about["role"], about["followed_by"]["process"]))

    def told(self, role: str, process: int | None) -> bool:
        """Whether an earlier registry of the job has written that this process took over a role."""
        return (role, process) in self._told

    def add(self, event: str, said: str = "", **about: Any) -> None:
        """Tells what happened, at once.

        Args:
            said: the warning; none if empty.
        """
        if said:
            with suppress(Exception):  # of a handler of the user's
                logger.warning("%s", said)
        if self._file is not None:
            with suppress(Exception):
                line = {"event": event, "time": time.time(), **about}
                self._file.add(json.dumps(line).encode())


About = Mapping[str, Any]


def roles_status(
    handles: Sequence[RemoteHandle], loaders: int, constructors: int, said: Sequence[About]
) -> dict[str, Any]:
    """JSON-able: the part of a job's status that its roles say themselves.

    Args:
        handles: the planner, so many loaders and constructors, and any others.
        said: [handles] see `RoleWatch.status`.
    """
    pairs = list(zip(handles, said))
    of_loaders, of_constructors = said[1 : 1 + loaders], said[1 + loaders :][:constructors]
    return {
        "planner": said[0],
        "loaders": of_loaders,
        "constructors": of_constructors,
        "silent": [each.name for each, about in pairs if "silent_seconds" in about],
        "bytes": {
            "storage_to_cache": _sum(of_loaders, "fetched_bytes", "cache"),
            "cache_to_loader": _sum(of_loaders, "served_bytes", "cache"),
            "loader_to_constructor": _sum(of_loaders, "fetch_bytes", "process", "done"),
            "constructor_to_client": _sum(of_constructors, "deliver_bytes", "process", "done"),
        },
    }


def fresh_clients(
    clients: Sequence[Mapping[str, Any]], constructors: Sequence[About]
) -> list[dict[str, Any]]:
    """Clients with the steps that constructors know they have taken: what clients report
    themselves may come late, or in another order."""
    fresh = [each for each in constructors if "seconds_old" not in each]
    taken = {rank: step for each in fresh for rank, step in each.get("taken", {}).items()}
    return [{**each, "step": taken.get(str(each["rank"]), each["step"])} for each in clients]


def _sum(roles: Sequence[About], name: str, *within: str) -> int:
    found = (reduce(lambda part, key: part.get(key, {}), within, role) for role in roles)
    return sum(int(each.get(name, 0)) for each in found)
