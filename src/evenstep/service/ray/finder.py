"""`RayFinder`: finds the process of an actor, which Ray starts again when it has died; and
`LoaderFinder`: finds that of a loader, which a standby may play next."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evenstep.service.ray.road import RayRoad, import_ray
from evenstep.service.remote.roads import Answer, RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import Location

_INTERVAL = 0.2  # seconds
_PROMPT_SECONDS = 0.5  # in which an actor that runs says what it plays


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


@dataclass(frozen=True)
class LoaderFinder:
    """Of one loader of a job with standbys. Each `LoaderActor` says what it plays, so whoever has
    lost a loader finds its successor, or has the first standby play it, without asking others. Two
    that find different ones, at the same time, get the same from both."""

    namespace: str
    names: tuple[str, ...]
    """Of all loader actors, those of the loaders first."""
    loaders: int
    number: int

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        while True:
            said = self.said()
            playing = [actor for actor, (number, *_) in said if number == self.number]
            idle = [actor for actor, (number, *_) in said if number is None]
            for actor in (*playing, *idle):
                answer = _answer(actor.play.remote(self.number))
                if answer is not None:
                    return location_in(answer, actor)
            time.sleep(_INTERVAL)

    def said(self) -> list[tuple[Any, tuple[int | None, int, str]]]:
        """The actors that answer at once, and what they say; see `LoaderActor.plays`.

        Raises:
            RoleGoneError: there is none any more.
        """
        ray, actors = import_ray(), {}
        for name in self.names:
            with suppress(ValueError):  # it is ended, or not made yet
                actor = ray.get_actor(name, namespace=self.namespace)
                actors[actor.plays.remote()] = actor
        if not actors:
            raise RoleGoneError
        ready, _ = ray.wait(list(actors), num_returns=len(actors), timeout=_PROMPT_SECONDS)
        said = [(actors[asked], _answer(asked)) for asked in actors if asked in ready]
        return [(actor, answer) for actor, answer in said if answer is not None]

    def standbys(self) -> list[dict[str, Any]]:
        """JSON-able: those that are ready, and as many that are not as there should be."""
        said = [what for _, what in self.said()]
        idle = [(process, host) for number, process, host in said if number is None]
        playing = {number for number, *_ in said} - {None}
        missing = len(self.names) - len(idle) - max(len(playing), self.loaders)
        found: list[tuple[int | None, str]] = [*idle, *[(None, "")] * missing]
        return [{"process": p, "host": host, "ready": p is not None} for p, host in found]


def _answer(asked: Any) -> Any:
    """What an actor answers; None if it is gone."""
    exceptions = import_ray().exceptions
    try:
        return import_ray().get(asked)
    except exceptions.RayTaskError:
        raise
    except exceptions.RayError:  # it has died since
        return None


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
