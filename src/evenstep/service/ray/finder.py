"""`RayFinder`: finds the process of an actor, which Ray starts again when it has died."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evenstep.service.ray.road import RayRoad, import_ray
from evenstep.service.remote.roads import Answer, RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import Location


@dataclass(frozen=True)
class RayFinder:
    """Of one actor; a `Finder` for processes that are connected to its cluster."""

    namespace: str
    name: str

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        ray = import_ray()
        try:
            actor = ray.get_actor(self.name, namespace=self.namespace)
            answer = ray.get(asked_for_location(actor))
        except (ValueError, ray.exceptions.RayError) as error:  # ValueError: there is none
            raise RoleGoneError from error
        return location_in(answer, actor)


def asked_for_location(actor: Any) -> Any:
    """Ray's reference to the answer of `RoleActor.location`, for which Ray waits while it starts
    the actor again."""
    return actor.location.options(max_task_retries=-1).remote()


def location_in(answer: Answer, actor: Any) -> Location:
    """
    Raises:
        EvenstepError: the role could not be made.
    """
    if answer.error is not None:
        raise answer.error
    process, host, born, endpoint = answer.value
    road = RayRoad(actor) if endpoint is None else SocketRoad(endpoint)
    return Location(road, process, host, born)
