"""`RoleStatuses`: what all roles of a job have said of themselves, for its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.waits import is_silent, silence_text


class RoleStatuses:
    """Of the same moment."""

    def __init__(
        self, job: JobInfo, handles: Sequence[RemoteHandle], said: Sequence[dict[str, Any]]
    ) -> None:
        """
        Args:
            handles: of the job's roles, and of former ones after them.
            said: what `RoleInquiry.status` says of each.
        """
        self._handles, self._said = handles, said
        loaders = len(job.loaders)
        self.planner = said[0]
        self.loaders = said[1 : 1 + loaders]
        self.constructors = said[1 + loaders : len(job.roles)]

    @property
    def by_role(self) -> dict[str, dict[str, Any]]:
        return {each.role: said for each, said in zip(self._handles, self._said)}

    def clients(self, known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Clients with the steps that constructors know they have taken: what clients report
        themselves may come late, or in another order."""
        fresh = [each for each in self.constructors if "seconds_old" not in each]
        taken = {rank: step for each in fresh for rank, step in each.get("taken", {}).items()}
        return [{**each, "step": taken.get(str(each["rank"]), each["step"])} for each in known]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        pairs = list(zip(self._handles, self._said))
        return {
            "planner": self.planner,
            "loaders": self.loaders,
            "constructors": self.constructors,
            "silent": [silence_text(each.name, said) for each, said in pairs if is_silent(said)],
            "messages": {
                each.role: said["process"]["sent"]
                for each, said in pairs
                if "sent" in said.get("process", {})
            },
            "bytes": {
                "loader_to_constructor": _sum(self.loaders, "fetch_bytes"),
                "constructor_to_client": _sum(self.constructors, "deliver_bytes"),
            },
        }


def _sum(roles: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(role.get("process", {}).get("done", {}).get(name, 0)) for role in roles)
