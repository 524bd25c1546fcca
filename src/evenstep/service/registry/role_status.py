"""What all roles say of themselves, summed up: their part of the status, and who waits for whom.

A role's `about` is what `RoleWatch` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.requests import Request
from evenstep.service.remote.role_place import located

About = Mapping[str, Any]
Wait = Mapping[str, Any]
"""`by`, who waits; `role`, `process` and `host`, for whom; `message`, `step` and `source`, what was
asked; `seconds`; and `silent`, whether the process that is waited for says nothing."""


def waits_of(roles: Mapping[str, About], least: float) -> list[dict[str, Any]]:
    """JSON-able: which role waits for which, the longest wait first.

    Args:
        roles: by name.
        least: seconds; shorter waits count only if they are for a process that says nothing.
    """
    found = [
        {"by": name, **wait, "silent": is_silent(roles.get(wait["role"], {}))}
        for name, about in roles.items()
        for wait in about.get("process", {}).get("waits", ())
    ]
    kept = [wait for wait in found if wait["seconds"] >= least or wait["silent"]]
    return sorted(kept, key=lambda wait: -float(wait["seconds"]))


def is_silent(about: About) -> bool:
    """Whether a process has not answered in time."""
    return "silent_seconds" in about


def silence_text(name: str, about: About) -> str:
    """A clause that says that a process is silent, without its full stop."""
    seconds = max(about["silent_seconds"], 1)
    return f"{name} has not answered for {seconds:.0f} s: it is stopped, hangs or is overloaded"


def wait_text(wait: Wait) -> str:
    """One wait, as a sentence without its full stop."""
    silent = ", which does not answer" if wait["silent"] else ""
    return (
        f"{wait['by']} has waited {wait['seconds']:.0f} s for {_request(wait)} of "
        f"{located(wait)}{silent}"
    )


def blame(roles: Mapping[str, About], role: str, step: int | None = None) -> str:
    """Follows the chain of waits from a role to the one that blocks all: clauses about `role`.

    Args:
        step: what is waited for; a wait for this step says more than one for another.
    """
    text, seen = "", {role}
    while True:
        about = roles.get(role, {})
        if "died" in about:
            return f"{text}which {about.get('missing', 'has died')}"
        if is_silent(about):
            return text + silence_text("which", about)
        process = about.get("process", {})
        waits = [each for each in process.get("waits", ()) if each["role"] not in seen]
        if not waits:
            return text + _work(process, step)
        wait = _most_telling(waits, step)
        text += (
            f"which has waited {wait['seconds']:.0f} s for {_request(wait)} of {located(wait)}, "
        )
        role = wait["role"]
        seen.add(role)


def _work(process: Mapping[str, Any], step: int | None) -> str:
    works = [each for each in process.get("handles", ()) if each["message"] != "status"]
    if not works:
        return "which answers, and works on nothing"
    work = _most_telling(works, step)
    return f"which has worked {work['seconds']:.0f} s on {_request(work)}"


def _most_telling(requests: list[Wait], step: int | None) -> Wait:
    return max(requests, key=lambda each: (each["step"] == step, each["seconds"]))


def _request(wait: Wait) -> Request:
    return Request(wait["message"], wait["step"], wait["source"])


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
        "silent": [silence_text(each.name, about) for each, about in pairs if is_silent(about)],
        "messages": {
            each.role: about["process"]["sent"]
            for each, about in pairs
            if "sent" in about.get("process", {})
        },
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
