"""`CommonState`: where the ranks of a trainer meet to save.

A state is valid for all ranks only if all save at the same step. So each rank waits here until all
have arrived. If a rank cannot arrive any more, because it has passed the step or has arrived at
another one, all get an error.

At a step where all have already met, and at earlier ones, there is nothing to wait for: all ranks
have reported what they measured before it. So a rank that arrives there later gets the state at
once. It may have restarted since, or the registry may have died before it answered.

A launcher restarts the ranks of a job one after the other. Until all have started, or for some
seconds, no rank gets an error because of what a client did that may have been killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.client.service_step import mesh_changed
from evenstep.service.job.roles import steps_text
from evenstep.service.messages import Method, P, call
from evenstep.service.planner.planner import Planner
from evenstep.service.remote.channels import Answer
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_threads import in_thread

_RESTART_SECONDS = 60.0
"""From the first rank that restarts to the last."""


@dataclass
class _Meeting:
    step: int
    """At which the first rank arrived."""
    begins: bool
    """Whether a mesh begins there, and a client of that mesh has arrived."""
    came: dict[int, int] = field(default_factory=dict)
    """By rank, the step at which it arrived."""
    waiting: dict[int, list[asyncio.Future[Answer]]] = field(default_factory=dict)
    """By rank."""
    ranks: list[int] | None = None
    """That must arrive; None until the planner has answered."""
    complete: bool = False
    """Whether all have arrived."""


class CommonState:
    """One meeting after another. Used in one event loop."""

    def __init__(
        self,
        planner: RemoteHandle,
        clients: Mapping[int, int],
        end_of: Callable[[int], int | None] = lambda mesh: None,
    ) -> None:
        """
        Args:
            clients: by rank, the number of its last client, as far as it is known by now.
            end_of: see `JobState.end_of`.
        """
        self._planner, self._clients, self._end_of = planner, clients, end_of
        self._taken: dict[int, int] = {}
        """By rank, the step that its client has taken last."""
        self._failed: dict[int, EvenstepError] = {}
        """By rank, the error that its client has ended with."""
        self._doubtful: set[int] = set()
        """Ranks that have not been heard of since another one restarted."""
        self._trusting: asyncio.TimerHandle | None = None
        self._meeting: _Meeting | None = None
        self._asking: asyncio.Task[None] | None = None
        self._met: int | None = None
        """The last step at which all have met; None until the planner has said it."""

    async def meet(
        self, rank: int, step: int, client: int, mesh: int = 0, begins: bool = False
    ) -> Answer:
        """Waits for all ranks; the answer has the state before `step`.

        Args:
            client: the number of the rank's client.
            mesh: of the client; see `JobInfo`.
            begins: whether the mesh begins at the step.
        """
        if self._met is None:
            answer = await self._answer(Planner.last_meeting)
            if answer.error is not None:
                return answer
            self._met = max(answer.value[0], -1 if self._met is None else self._met)
        while (meeting := self._meeting) is not None and meeting.complete:
            assert self._asking is not None
            await asyncio.wait([self._asking])  # nobody can join it any more
        if self._clients.get(rank, client) != client:  # it has restarted meanwhile
            return Answer(error=superseded(rank))
        end = self._end_of(mesh)
        if begins and end is not None and end <= step:
            return Answer(error=mesh_changed(rank, step, end))
        self._doubtful.discard(rank)
        if step <= self._met:
            return await self._answer(Planner.common_state, step)
        if meeting is None:
            meeting = self._begin(_Meeting(step, begins))
        elif begins and not meeting.begins:  # the mesh of those who came has ended
            meeting = self._begin(replace(meeting, begins=True, ranks=None))
        meeting.came[rank] = step
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        meeting.waiting.setdefault(rank, []).append(waiting)
        self._end_if_decided()
        return await waiting

    def took_step(self, rank: int, step: int) -> None:
        """Notes a step that a rank's last client has taken. Reports may arrive out of order."""
        self._taken[rank] = max(step, self._taken.get(rank, step))
        self._doubtful.discard(rank)
        self._end_if_decided()

    def note_failure(self, rank: int, error: EvenstepError) -> None:
        """Notes that a rank got an error, and will not come."""
        self._failed[rank] = error
        self._doubtful.discard(rank)
        self._end_if_decided()

    def end_mesh(self, step: int) -> None:
        """Notes that the mesh has ended. If it began at the same step or later, its ranks get no
        step, and stop waiting for each other."""
        meeting = self._meeting
        if meeting is None or not meeting.begins or meeting.complete or meeting.step < step:
            return
        self._meeting = None
        for rank, each in meeting.waiting.items():
            _answer(each, Answer(error=mesh_changed(rank, meeting.step, step)))

    def note_restart(self, rank: int) -> None:
        """Notes that a rank that had a client has a new one. Nobody waits for the old one, and it
        does not wait either."""
        self._taken.pop(rank, None)
        self._failed.pop(rank, None)
        self._doubtful = {each for each in self._clients if each != rank}
        if self._trusting is not None:
            self._trusting.cancel()
        loop = asyncio.get_running_loop()
        self._trusting = loop.call_later(_RESTART_SECONDS, self._trust)
        meeting = self._meeting
        if meeting is not None and not meeting.complete and rank in meeting.came:
            del meeting.came[rank]
            _answer(meeting.waiting.pop(rank), Answer(error=superseded(rank)))
            self._meeting = None
            if meeting.came:
                self._begin(replace(meeting, step=min(meeting.came.values()), ranks=None))

    def _trust(self) -> None:
        self._doubtful.clear()
        self._end_if_decided()

    def _begin(self, meeting: _Meeting) -> _Meeting:
        self._meeting = meeting
        self._asking = asyncio.create_task(self._ask_ranks(meeting))
        return meeting

    async def _ask_ranks(self, meeting: _Meeting) -> None:
        answer = await self._answer(Planner.saving_ranks, meeting.step, meeting.begins)
        if meeting is not self._meeting:
            return
        if answer.error is None:
            meeting.ranks = answer.value[0]
            self._end_if_decided()
        else:
            self._end(answer)

    async def _ask_state(self, meeting: _Meeting) -> None:
        """Only after all have arrived, so that the state has what they have reported."""
        answer = await self._answer(Planner.common_state, meeting.step)
        if answer.error is None:
            assert self._met is not None
            self._met = max(self._met, meeting.step)
        self._end(answer)

    async def _answer(self, method: Method[P, Any], *args: P.args, **named: P.kwargs) -> Answer:
        try:
            return Answer([await in_thread(partial(call, self._planner, method, *args, **named))])
        except Exception as error:  # whatever it is: those that wait must get it
            return Answer(error=error)

    def _end_if_decided(self) -> None:
        meeting = self._meeting
        if meeting is None:
            return
        if (error := self._error(meeting)) is not None:
            self._end(Answer(error=error))
        elif meeting.ranks is not None and not meeting.complete:
            come = {rank for rank, step in meeting.came.items() if step == meeting.step}
            if come.issuperset(meeting.ranks):
                meeting.complete = True
                self._asking = asyncio.create_task(self._ask_state(meeting))

    def _error(self, meeting: _Meeting) -> EvenstepError | None:
        """Why not all can come to a meeting, as far as that is certain."""
        certain = self._clients.keys() - self._doubtful
        for rank in certain & self._failed.keys():
            return self._failed[rank]
        came = {rank: step for rank, step in meeting.came.items() if rank in certain}
        if len(set(came.values())) > 1:
            return ConfigurationError(
                f"common_state() was called by {steps_text(came)}; call it on every rank after the "
                "same step"
            )
        missing = [rank for rank in meeting.ranks or () if rank in certain - came.keys()]
        beyond = {rank: self._taken.get(rank, -1) + 1 for rank in missing}
        gone = {rank: step for rank, step in beyond.items() if step > meeting.step}
        if gone:
            return ConfigurationError(
                f"common_state() was called by {steps_text(meeting.came)}, and not by "
                f"{steps_text(gone)}; call it on every rank after the same step"
            )
        return None

    def _end(self, answer: Answer) -> None:
        meeting, self._meeting = self._meeting, None
        assert meeting is not None
        for each in meeting.waiting.values():
            _answer(each, answer)


def superseded(rank: int) -> EvenstepError:
    """The error of a client that saves after its rank has restarted."""
    return EvenstepError(f"rank {rank} has a newer client, which was started since; end this one")


def _answer(waiting: Sequence[asyncio.Future[Answer]], answer: Answer) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(answer)
