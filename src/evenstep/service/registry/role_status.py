"""What all roles say of themselves, summed up; and what happened to them.

A role's `about` is what `RoleWatch` returns. `EventLog` has a line of JSON for each event in a
file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.remote.handles import RemoteHandle


class EventLog:
    """Each line has `time`, seconds since 1970, and `event`."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """
        Args:
            path: appended to; None writes nothing.

        Raises:
            ConfigurationError: it cannot be written.
        """
        self._path = path
        if path is not None:
            try:
                with open(path, "a"):
                    pass
            except OSError as error:
                raise ConfigurationError(
                    f"events={os.fspath(path)!r} cannot be written ({error}); give a file in a "
                    "folder that is there"
                ) from error

    def add(self, event: str, **about: Any) -> None:
        """Writes what happened, at once."""
        if self._path is not None:
            line = json.dumps({"event": event, "time": time.time(), **about})
            with open(self._path, "a") as file:
                file.write(line + "\n")


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
            "loader_to_constructor": _sum(of_loaders, "fetch_bytes"),
            "constructor_to_client": _sum(of_constructors, "deliver_bytes"),
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


def _sum(roles: Sequence[About], name: str) -> int:
    return sum(int(role.get("process", {}).get("done", {}).get(name, 0)) for role in roles)
