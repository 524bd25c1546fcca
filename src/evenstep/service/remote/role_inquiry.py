"""`RoleInquiry`: asks a role how it is, and does not wait for ever.

A process that is stopped keeps its connections, so nothing but its silence tells. Its status comes
from the role, which may be busy; what it works on and waits for comes from a thread beside it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.roads import Answer, RoleGoneError

STATUS_LIMIT = 0.7
"""Seconds that a status waits for a role, so that it is there within a second."""
ANSWER_LIMIT = 3.0
"""Seconds in which a process that runs answers, also on a machine that is overloaded."""


class RoleInquiry:
    """Asks the role of one handle."""

    def __init__(self, handle: RemoteHandle) -> None:
        self.handle = handle
        self._said: dict[str, Any] = {}
        """By the role, when it was asked last."""
        self._said_at = 0.0
        self._late: dict[str, tuple[asyncio.Future[Answer], float]] = {}
        """Questions that were not answered in time. They are not asked again before they are
        answered, so that they do not pile up at a process that is stopped."""

    async def status(self) -> dict[str, Any]:
        """JSON-able: what the role says, and `process`. Of a role that says nothing within
        `STATUS_LIMIT`, it is what it said last, and `seconds_old` since when."""
        asked = asyncio.ensure_future(self._ask("status", STATUS_LIMIT))
        asked.add_done_callback(_noted)  # the service may be closed meanwhile
        about = await self.process(STATUS_LIMIT)
        try:
            answer = await asked
        except RoleGoneError:
            return {"died": self.handle.name}
        if "died" in about:
            return about
        if answer is None:
            old = {"seconds_old": time.monotonic() - self._said_at} if self._said else {}
            return {**self._said, **old, **about}
        if answer.error is not None:
            return {**about, "failed": str(answer.error)}
        self._said, self._said_at = answer.value[0], time.monotonic()
        return {**self._said, **about}

    async def process(self, limit: float = ANSWER_LIMIT) -> dict[str, Any]:
        """JSON-able: `process`, which has what `RoleHost.measure` says. If it says nothing in
        time, `silent_seconds` has the time since it was asked; if it is dead, `died` its name.

        Args:
            limit: seconds to wait.
        """
        handle = self.handle
        try:
            measured = await self._ask("measure", limit)
        except RoleGoneError:
            return {"died": handle.name}
        if measured is not None:
            return {"process": measured.value[0]}
        silent = time.monotonic() - self._late["measure"][1]
        about = {name: handle.about[name] for name in ("process", "host")}
        return {"process": about, "silent_seconds": silent}

    def close(self) -> None:
        """Waits for no answer any more."""
        for asked, _ in self._late.values():
            asked.cancel()

    async def _ask(self, message: Literal["status", "measure"], limit: float) -> Answer | None:
        """The answer, or None if it is late. What was asked before and is not answered yet is
        waited for."""
        asked, since = self._late.get(message, (None, 0.0))
        if asked is None or asked.done():
            asked, since = asyncio.ensure_future(self._send(message)), time.monotonic()
            asked.add_done_callback(_noted)
        await asyncio.wait([asked], timeout=limit)
        if asked.done():
            return asked.result()
        self._late[message] = asked, since
        return None

    async def _send(self, message: Literal["status", "measure"]) -> Answer:
        """Asks the process that plays the role now, and not its successor."""
        known = self.handle.place.known
        if known is None:  # it is being made
            raise RoleGoneError
        return await known.road.send([(message, ())]).later()


def _noted(asked: asyncio.Future[Any]) -> None:
    """That of an answer which comes when nobody asks any more, asyncio would log the error."""
    if not asked.cancelled():
        asked.exception()
