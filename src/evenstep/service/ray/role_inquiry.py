"""`RoleInquiry`: asks a role how it is, and does not wait for ever.

A process that is stopped keeps its connections, so nothing but its silence tells. Its status comes
from the role, which may be busy; what it works on and waits for comes from a thread beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from evenstep.service.ray.handles import RayHandle, decode_answer, encode_messages, import_ray

ANSWER_LIMIT = 3.0
"""Seconds in which a process that runs answers."""


class RoleInquiry:
    """Asks the role of one handle."""

    def __init__(self, handle: RayHandle) -> None:
        self.handle = handle
        self._late: dict[str, tuple[asyncio.Future[Any], float]] = {}
        """Questions that were not answered in time. They are not asked again before they are
        answered, so that they do not pile up at a process that is stopped."""

    async def status(self) -> dict[str, Any]:
        """JSON-able: what the role says, and `process`."""
        actor, message = self.handle.actor, encode_messages([("status", ())])
        asked = asyncio.ensure_future(self._ask("status", lambda: actor.handle.remote(message)))
        about = await self.process()
        try:
            said = await asked
        except import_ray().exceptions.RayActorError:
            return {"died": self.handle.name}
        if said is None or "died" in about:
            return about
        answer = decode_answer(said)
        if answer.error is not None:
            return {**about, "failed": str(answer.error)}
        return {**answer.value[0], **about}

    async def process(self) -> dict[str, Any]:
        """JSON-able: `process`, which has what `RoleActor.measure` says. If it says nothing in
        time, `silent_seconds` has the time since it was asked; if it is dead, `died` its name."""
        handle = self.handle
        try:
            measured = await self._ask("measure", lambda: handle.actor.measure.remote())
        except import_ray().exceptions.RayActorError:
            return {"died": handle.name}
        if measured is not None:
            return {"process": measured}
        silent = time.monotonic() - self._late["measure"][1]
        known = {"process": handle.process, "host": handle.host}
        return {"process": known, "silent_seconds": silent}

    async def _ask(self, what: str, send: Callable[[], Any]) -> Any:
        """The answer, or None if it is late."""
        asked, since = self._late.get(what, (None, 0.0))
        if asked is None or asked.done():
            asked, since = asyncio.ensure_future(send()), time.monotonic()
        await asyncio.wait([asked], timeout=ANSWER_LIMIT)
        if asked.done():
            return asked.result()
        self._late[what] = asked, since
        return None
