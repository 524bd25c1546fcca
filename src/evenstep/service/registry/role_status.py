"""What all roles say of themselves, summed up. A role's `about` is what `RoleWatch` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenstep.service.remote.handles import RemoteHandle

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
