"""`LoaderFinder`: finds the process of a loader, which a standby may play next."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evenstep.service.ray.finder import location_in
from evenstep.service.ray.road import import_ray
from evenstep.service.remote.roads import RoleGoneError
from evenstep.service.remote.role_place import Location
from evenstep.service.source_loader import LoaderPart

_INTERVAL = 0.2  # seconds
_PROMPT_SECONDS = 0.5  # in which an actor that runs says what it plays


@dataclass(frozen=True)
class LoaderActors:
    """All loaders and standbys of a job with standbys."""

    namespace: str
    run_id: int

    def said(self) -> list[tuple[Any, tuple[int | None, int, str]]]:
        """The actors that answer at once, and what they say; see `LoaderActor.plays`.

        Raises:
            RoleGoneError: there is none any more.
        """
        ray, actors = import_ray(), {}
        for name in self._names():
            with suppress(ValueError):  # it has ended since
                actor = ray.get_actor(name, namespace=self.namespace)
                actors[actor.plays.remote()] = actor
        if not actors:
            raise RoleGoneError
        ready, _ = ray.wait(list(actors), num_returns=len(actors), timeout=_PROMPT_SECONDS)
        said = [(actors[asked], _answer(asked)) for asked in actors if asked in ready]
        return [(actor, answer) for actor, answer in said if answer is not None]

    def standbys(self, loaders: int) -> list[dict[str, Any]]:
        """JSON-able: those that are ready, and as many that are not as there should be.

        Args:
            loaders: how many are to be played.
        """
        said = [what for _, what in self.said()]
        idle = [(process, host) for number, process, host in said if number is None]
        playing = {number for number, *_ in said} - {None}
        missing = len(self._names()) - len(idle) - max(len(playing), loaders)
        found: list[tuple[int | None, str]] = [*idle, *[(None, "")] * missing]
        return [{"process": p, "host": host, "ready": p is not None} for p, host in found]

    def has_ended(self, part: LoaderPart) -> bool:
        """See `Standing.has_ended`; as far as the registry answers."""
        ray = import_ray()
        try:
            registry = ray.get_actor(f"{self.run_id}-registry", namespace=self.namespace)
        except ValueError:  # the job ends
            return True
        standing = _answer(registry.standing.remote())
        return standing is not None and bool(standing.has_ended(part.number, part.role))

    def _names(self) -> list[str]:
        """Loaders first."""
        from ray.util import list_named_actors

        kinds = f"{self.run_id}-loader-", f"{self.run_id}-standby-"
        return sorted(
            actor["name"]
            for actor in list_named_actors(all_namespaces=True)
            if actor["namespace"] == self.namespace and actor["name"].startswith(kinds)
        )


@dataclass(frozen=True)
class LoaderFinder:
    """Of one loader of a job with standbys. Each `LoaderActor` says what it plays, so whoever has
    lost a loader finds its successor, or has the first standby play it, without asking others. Two
    that find different ones, at the same time, get the same from both."""

    actors: LoaderActors
    part: LoaderPart

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        while True:
            # One that has ended is asked for by who drops what it held. No standby may follow it.
            if dead is not None and self.actors.has_ended(self.part):
                raise RoleGoneError
            said = self.actors.said()
            playing = [actor for actor, (number, *_) in said if number == self.part.number]
            idle = [actor for actor, (number, *_) in said if number is None]
            for actor in (*playing, *idle):
                answer = _answer(actor.play.remote(self.part))
                if answer is not None:
                    return location_in(answer, actor)
            played: set[int | None] = set()
            for actor, (number, *_) in said:  # one that was only slow has been followed
                if number in played:
                    import_ray().kill(actor, no_restart=False)
                played.add(number)
            time.sleep(_INTERVAL)


def _answer(asked: Any) -> Any:
    """What an actor answers; None if it is gone."""
    exceptions = import_ray().exceptions
    try:
        return import_ray().get(asked)
    except exceptions.RayTaskError:
        raise
    except exceptions.RayError:  # it has died since
        return None
