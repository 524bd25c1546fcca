"""`CommonState`: where the ranks of a trainer meet to save.

A state is right for all ranks only if all save at the same step. So each waits here until all have
come. If one cannot come any more, as it has gone on or has come at another step, all get an error.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.backend_common import steps_text
from evenstep.service.handles import MessageName
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.roads import Answer


@dataclass
class _Meeting:
    step: int
    """At which the first rank came."""
    begin: float = field(default_factory=time.monotonic)
    came: dict[int, int] = field(default_factory=dict)
    """By rank, the step at which it came."""
    clients: dict[int, int] = field(default_factory=dict)
    """By rank, the number of its client."""
    waiting: list[asyncio.Future[Answer]] = field(default_factory=list)
    ranks: list[int] | None = None
    """That must come; None until the planner has said so."""
    complete: bool = False
    """Whether all have come."""


class CommonState:
    """One meeting after another. Used in one event loop."""

    def __init__(self, planner: RemoteHandle) -> None:
        self._planner = planner
        self._taken: dict[int, int] = {}
        """By rank, the step that its client has taken last."""
        self._failed: dict[int, EvenstepError] = {}
        """By rank, the error that its client has ended with."""
        self._meeting: _Meeting | None = None
        self._asking: asyncio.Task[None] | None = None

    async def meet(self, rank: int, step: int, client: int) -> Answer:
        """Waits for all ranks; the answer has the state before `step`.

        Args:
            client: the number of the rank's client.
        """
        for error in self._failed.values():
            return Answer(error=error)
        meeting = self._meeting
        if meeting is None:
            meeting = self._meeting = _Meeting(step)
            self._asking = asyncio.create_task(self._ask_ranks(meeting, client))
        meeting.came[rank], meeting.clients[rank] = step, client
        meeting.waiting.append(asyncio.get_running_loop().create_future())
        waiting = meeting.waiting[-1]
        self._end_if_decided()
        return await waiting

    def took_step(self, rank: int, step: int) -> None:
        self._taken[rank] = step
        self._end_if_decided()

    def failed(self, rank: int, error: EvenstepError) -> None:
        """Notes that a rank got an error, and will not come."""
        self._failed[rank] = error
        if self._meeting is not None:
            self._end(Answer(error=error))

    def begins_anew(self, rank: int) -> None:
        """Notes that a rank has a new client."""
        self._taken.pop(rank, None)
        self._failed.pop(rank, None)
        if self._meeting is not None and rank in self._meeting.came:
            self._end_by(
                f"rank {rank} has a new client, and its old one was to save with "
                f"{steps_text(self._meeting.came)}; start the other ranks again too"
            )

    def waits(self) -> list[dict[str, Any]]:
        """JSON-able, see `evenstep.service.remote.waits.Wait`: who waits for ranks, if any does."""
        meeting = self._meeting
        if meeting is None or meeting.ranks is None:
            return []
        missing = {
            rank: self._taken.get(rank, meeting.step - 1) + 1
            for rank in meeting.ranks
            if rank not in meeting.came
        }
        return [
            {
                "by": steps_text(meeting.came),
                "role": steps_text(missing),
                "process": None,
                "host": "",
                "message": "common_state",
                "step": meeting.step,
                "source": None,
                "seconds": time.monotonic() - meeting.begin,
                "silent": False,
            }
        ]

    async def _ask_ranks(self, meeting: _Meeting, client: int) -> None:
        answer = await self._answer("saving_ranks", meeting.step, client)
        if meeting is not self._meeting:
            return
        if answer.error is None:
            meeting.ranks = answer.value[0]
            self._end_if_decided()
        else:
            self._end(answer)

    async def _ask_state(self, meeting: _Meeting) -> None:
        """Not before all have come: the state has what they have reported."""
        clients = list(meeting.clients.values())
        answer = await self._answer("common_state", meeting.step, clients)
        if meeting is self._meeting:
            self._end(answer)

    async def _answer(self, message: MessageName, *arguments: Any) -> Answer:
        try:
            return await self._planner.ask(message, *arguments)
        except EvenstepError as error:
            return Answer(error=error)

    def _end_if_decided(self) -> None:
        meeting = self._meeting
        if meeting is None:
            return
        if len(set(meeting.came.values())) > 1:
            self._end_by(
                f"common_state() was called by {steps_text(meeting.came)}; call it on every rank "
                "after the same step"
            )
        elif meeting.ranks is not None:
            missing = [rank for rank in meeting.ranks if rank not in meeting.came]
            beyond = {rank: self._taken.get(rank, -1) + 1 for rank in missing}
            gone = {rank: step for rank, step in beyond.items() if step > meeting.step}
            if gone:
                self._end_by(
                    f"common_state() was called by {steps_text(meeting.came)}, and not by "
                    f"{steps_text(gone)}; call it on every rank after the same step"
                )
            elif not missing and not meeting.complete:
                meeting.complete = True
                self._asking = asyncio.create_task(self._ask_state(meeting))

    def _end_by(self, text: str) -> None:
        error: EvenstepError = ConfigurationError(text)
        self._end(Answer(error=error))

    def _end(self, answer: Answer) -> None:
        meeting, self._meeting = self._meeting, None
        assert meeting is not None
        for each in meeting.waiting:
            if not each.done():
                each.set_result(answer)
