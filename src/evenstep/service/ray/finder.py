"""`RayFinder`: finds the process of an actor, which Ray starts again when it has died."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from evenstep.service.ray.road import RayRoad, import_ray
from evenstep.service.remote.roads import Answer, RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import Location

_INTERVAL = 0.2  # seconds


@dataclass(frozen=True)
class RayFinder:
    """Of one actor; a `Finder` for processes that are connected to its cluster."""

    namespace: str
    name: str

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        ray = import_ray()
        while True:
            try:
                actor = ray.get_actor(self.name, namespace=self.namespace)
            except ValueError as error:  # it is ended, and not made again
                raise RoleGoneError from error
            try:
                answer = ray.get(actor.location.remote())
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # it is being made again
                time.sleep(_INTERVAL)
            else:
                return location_in(answer, actor)


def location_in(answer: Answer, actor: Any) -> Location:
    """
    Raises:
        EvenstepError: the role could not be made.
    """
    if answer.error is not None:
        raise answer.error
    process, host, born, endpoint, promoted = answer.value
    road = RayRoad(actor, born) if endpoint is None else SocketRoad(endpoint)
    return Location(road, process, host, born, promoted)
