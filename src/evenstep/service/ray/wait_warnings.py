"""`WaitWarnings`: logs what a client waits for, and which role of the service keeps it waiting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evenstep.service.ray.handles import RayHandle, import_ray
from evenstep.service.ray.open_requests import Request
from evenstep.service.ray.role_inquiry import ANSWER_LIMIT

logger = logging.getLogger("evenstep")

_LIMIT = 2 * ANSWER_LIMIT
"""Seconds in which the registry, which asks all roles, answers."""


class WaitWarnings:
    """To be the `on_wait` of a handle."""

    def __init__(self, registry: RayHandle, who: str) -> None:
        """
        Args:
            who: waits, such as "rank 3".
        """
        self._registry, self._who = registry, who

    def __call__(
        self, waited_for: RayHandle, request: Request, seconds: float, awaited: Sequence[Any]
    ) -> None:
        """See `evenstep.service.ray.handles.OnWait`."""
        ray = import_ray()
        wait = {
            "by": self._who,
            **waited_for.about,
            **asdict(request),
            "seconds": seconds,
        }
        told = self._registry.actor.explain.remote(wait)
        ready, _ = ray.wait([told, *awaited], num_returns=1, timeout=_LIMIT)
        why = f"and {self._registry.name} has not answered for {_LIMIT:.0f} s either"
        if told in ready:
            try:
                why = ray.get(told)
            except ray.exceptions.RayActorError:  # the wait ends with this error
                return
        elif ready:
            return
        logger.warning(
            "%s has waited %.0f s for %s of %s, %s",
            *(self._who, seconds, request, waited_for.name, why),
        )
