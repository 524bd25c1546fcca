"""`LimitWatch`: kills roles that hang and loaders that take too much memory.

A killed process is replaced as any that dies. Any role may hang. Only loaders have a memory limit,
because they hold what users' sources and transforms take; a loader over it is killed before the
system kills it or its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError, LoaderDiedError
from evenstep.service.options import FaultOptions
from evenstep.service.registry.event_log import EventLog
from evenstep.service.registry.role_watch import STATUS_LIMIT, RoleWatch
from evenstep.service.remote.process_memory import STATM
from evenstep.service.remote.role_place import ATTEMPTS
from evenstep.service.remote.role_threads import in_thread

logger = logging.getLogger("evenstep")

_LOOK = 0.5  # seconds between looks at the memory of loaders
_SOON = 60.0
"""Seconds. Another process is no remedy for what takes a loader over its limit sooner than that."""
_MEBI = 1 << 20
_BARE = 32 * _MEBI
"""Bytes of a process that has opened no source."""
_NAMED = 5  # sources, in messages


def check_memory_limit(limit: int | None, workers: int) -> None:
    """
    Args:
        workers: of the loader that has most.

    Raises:
        ConfigurationError: the limit is too low, or memory cannot be measured here.
    """
    if limit is None:
        return
    least = (1 + workers) * _BARE
    if limit < least:
        raise ConfigurationError(
            f"memory_limit={limit} must be at least {least} bytes, which a loader with {workers} "
            "workers takes before it opens a source"
        )
    if not os.path.exists(STATM):
        raise ConfigurationError(
            f"memory_limit= needs {STATM}, which this system does not have; leave it out"
        )


@dataclass
class _Life:
    """A process of a loader."""

    process: int
    host: str
    since: float
    before: int
    """Processes in succession before it that were soon over the limit."""
    soon_over: bool = False


class LimitWatch:
    """See the module docstring. Used in one event loop."""

    def __init__(
        self,
        limits: FaultOptions,
        watches: Callable[[], Sequence[RoleWatch]],
        sources: Callable[[], Mapping[str, Sequence[str]]],
        kill: Callable[[Mapping[str, Any]], None],
        events: EventLog,
    ) -> None:
        """
        Args:
            watches: says which roles there are.
            sources: says which of them are loaders, and what each reads.
            kill: called in a thread with the `about` of a role's handle.
            events: where it is written what was killed, and why.
        """
        self._limits, self._kill, self._events = limits, kill, events
        self._watches, self._sources = watches, sources
        self._lives: dict[str, _Life] = {}

    async def silence(self) -> None:
        """Kills roles that say nothing for too long."""
        seconds = self._limits.hung_after
        while seconds:
            await asyncio.sleep(seconds / 4)
            watches = list(self._watches())
            said = await asyncio.gather(*(each.process() for each in watches))
            for watch, about in zip(watches, said):
                silent = about.get("silent_seconds", 0.0)
                if silent >= seconds:
                    logger.warning(
                        "%s has said nothing for %.0f s, and is killed", watch.handle.name, silent
                    )
                    await self._killed(watch, why="silent", silent_seconds=silent)

    async def memory(self) -> None:
        """Kills loaders that take too much memory.

        Raises:
            LoaderDiedError: one does so again and again, soon after it has started.
        """
        limit = self._limits.memory_limit
        while limit is not None:
            await asyncio.sleep(_LOOK)
            loaders = self._sources()
            watches = [each for each in self._watches() if each.handle.role in loaders]
            said = await asyncio.gather(*(each.process(STATUS_LIMIT) for each in watches))
            for watch, about in zip(watches, said):
                if "private_bytes" not in about.get("process", {}):  # silent, or being followed
                    continue
                handle, taken = watch.handle, about["process"]["private_bytes"]
                soon = self._soon(handle.role, about["process"], over=taken > limit)
                if taken <= limit:
                    continue
                text = (
                    f"{handle.name} takes {_mebi(taken)} with its workers, more than the "
                    f"memory_limit of {_mebi(limit)}"
                )
                remedy = (
                    "give it fewer sources by more loaders=, lower buffer_bytes= or workers= of "
                    "the job, or raise memory_limit="
                )
                if soon >= ATTEMPTS:
                    raise LoaderDiedError(
                        f"{text}, and so did the {ATTEMPTS - 1} processes before it, each within "
                        f"{_SOON:g} seconds. It reads {_named(loaders[handle.role])}: {remedy}, "
                        "and start the service again from the state saved last"
                    )
                logger.warning("%s: it is killed, and another follows; %s", text, remedy)
                await self._killed(watch, why="memory", memory_bytes=taken, memory_limit=limit)

    def _soon(self, role: str, process: Mapping[str, Any], *, over: bool) -> int:
        """How many processes of a loader in succession, up to the present one, were over the limit
        soon after they were first seen."""
        now, here = time.monotonic(), (process["process"], process["host"])
        life = self._lives.get(role)
        if life is None or (life.process, life.host) != here:
            before = life.before + 1 if life is not None and life.soon_over else 0
            life = self._lives[role] = _Life(*here, now, before)
        if over and now < life.since + _SOON:
            life.soon_over = True
        return life.before + 1 if life.soon_over else 0

    async def _killed(self, watch: RoleWatch, **why: Any) -> None:
        self._events.add("killed", **watch.handle.about, **why)
        await in_thread(self._kill, watch.handle.about)


def _mebi(size: int) -> str:
    return f"{size / _MEBI:,.0f} MiB"


def _named(sources: Sequence[str]) -> str:
    more = f" and {len(sources) - _NAMED:,} more" if len(sources) > _NAMED else ""
    return ", ".join(map(repr, sources[:_NAMED])) + more
