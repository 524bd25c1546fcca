"""Find the process of an actor that Ray restarts (`RayLocator`), and of a loader that a standby may
take over (`LoaderLocator`)."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evenstep.errors import EvenstepError, needing
from evenstep.service.job.source_layout import LoaderPart
from evenstep.service.remote.channels import Location, RoleGoneError

_INTERVAL = 0.2  # seconds


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    why = "without backend='processes', which runs on one machine, the service needs ray"
    with needing(why, "service"):
        import ray
    return ray


@dataclass(frozen=True)
class RayLocator:
    """Of one actor; a `Locator` for processes that are connected to its cluster."""

    namespace: str
    name: str

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.channels.Locator`."""
        ray = import_ray()
        while True:
            try:
                actor = ray.get_actor(self.name, namespace=self.namespace)
            except ValueError as error:  # it has ended for good
                raise RoleGoneError from error
            try:
                answer = ray.get(actor.location.remote())
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # it is restarting
                time.sleep(_INTERVAL)
            else:
                return location_in(answer)


def location_in(answer: Location | EvenstepError) -> Location:
    """What an actor says of itself; see `RoleActor.location`.

    Raises:
        EvenstepError: the role could not be made.
    """
    if isinstance(answer, EvenstepError):
        raise answer
    return answer


_PROMPT_SECONDS = 0.5  # in which a running actor answers


@dataclass(frozen=True)
class LoaderActors:
    """All loaders and standbys of a job with standbys."""

    namespace: str
    run_id: int

    def said(self) -> list[tuple[Any, tuple[int | None, int, str, int]]]:
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
            loaders: how many there should be.
        """
        said = [what for _, what in self.said()]
        idle = [(*about, True) for number, *about in said if number is None]
        playing = {number for number, *_ in said} - {None}
        missing = len(self._names()) - len(idle) - max(len(playing), loaders)
        names = ("process", "host", "opened", "ready")
        return [dict(zip(names, each)) for each in (*idle, *[(None, "", 0, False)] * missing)]

    def has_ended(self, part: LoaderPart) -> bool:
        """See `JobState.has_ended`; as far as the registry answers."""
        ray = import_ray()
        try:
            registry = ray.get_actor(f"{self.run_id}-registry", namespace=self.namespace)
        except ValueError:  # the job ends
            return True
        job_state = _answer(registry.job_state.remote())
        return job_state is not None and bool(job_state.has_ended(part.number, part.role))

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
class LoaderLocator:
    """Of one loader of a job with standbys. Each `LoaderActor` says what it runs, so a process that
    has lost a loader finds its successor, or lets the first standby take over, without asking
    others. If two processes find different ones at the same time, both serve the same samples."""

    actors: LoaderActors
    part: LoaderPart

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.channels.Locator`."""
        while True:
            # An ended loader is only asked to drop what it held. No standby may replace it.
            if dead is not None and self.actors.has_ended(self.part):
                raise RoleGoneError
            said = self.actors.said()
            playing = [actor for actor, (number, *_) in said if number == self.part.number]
            idle = [actor for actor, (number, *_) in said if number is None]
            for actor in (*playing, *idle):
                answer = _answer(actor.play.remote(self.part))
                if answer is not None:
                    return location_in(answer)
            played: set[int | None] = set()
            for actor, (number, *_) in said:  # one of them was only slow, and has been replaced
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
