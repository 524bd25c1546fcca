"""`WaitWarnings`: logs what a client waits for, and which role of the service keeps it waiting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.open_requests import Request
from evenstep.service.remote.roads import PendingAnswer, RoleGoneError
from evenstep.service.remote.role_inquiry import ANSWER_LIMIT

logger = logging.getLogger("evenstep")

_LIMIT = 2 * ANSWER_LIMIT
"""Seconds in which the registry, which asks all roles, answers."""


class WaitWarnings:
    """To be the `on_wait` of a handle."""

    def __init__(self, registry: RemoteHandle, who: str) -> None:
        """
        Args:
            who: waits, such as "rank 3".
        """
        self._registry, self._who = registry, who

    def __call__(
        self,
        waited_for: RemoteHandle,
        request: Request,
        seconds: float,
        awaited: Sequence[PendingAnswer],
    ) -> None:
        """See `evenstep.service.remote.handles.OnWait`."""
        wait = {
            "by": self._who,
            **waited_for.about,
            **asdict(request),
            "seconds": seconds,
        }
        registry = self._registry.place.known
        if registry is None:
            return
        told = registry.road.send([("explain", (wait,))])
        first = told.first_of(awaited, _LIMIT)
        why = f"and {self._registry.name} has not answered for {_LIMIT:.0f} s either"
        if first is told:
            try:
                why = told.answer().value[0]
            except RoleGoneError:
                why = f"and {self._registry.name} has died"
        elif first is not None:
            return
        logger.warning(
            "%s has waited %.0f s for %s of %s, %s",
            *(self._who, seconds, request, waited_for.name, why),
        )
