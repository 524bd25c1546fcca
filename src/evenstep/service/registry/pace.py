"""`Pace`: how far each rank may go ahead of the others.

The planner keeps the plans of the last steps only. So a rank requests no step whose plan would push
out one that another rank has yet to take: the first step that it may not request is that of the
rank furthest behind, plus the plans kept.

This cannot end in a deadlock. The rank furthest behind is never held itself, and ranks that meet in
collectives are at the same step, so none of them is held. A rank that waits otherwise for one that
is held takes no step, as if it had died, and is not waited for after `patience` seconds; one that
has taken no part yet, has left or has failed is not waited for at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenstep.service.job.roles import steps_text


@dataclass(frozen=True)
class Room:
    """What a rank is told."""

    limit: float
    """The first step that it may not request."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """By rank, the next step of those furthest behind."""

    def why(self, step: int) -> str:
        """Why a rank that comes to `step` is held, without a full stop."""
        steps = step - min(self.behind.values())
        return f"it comes to step {step:,}, {steps:,} ahead of {steps_text(self.behind)}"


FREE = Room(float("inf"))


class _Client(NamedTuple):
    number: int
    step: int
    since: float
    """When it has last taken a step, or asked how far it may go."""


class Pace:
    """Of the clients of one mesh. Times are seconds of any clock."""

    def __init__(self, kept: int, patience: float) -> None:
        """
        Args:
            kept: plans that the planner keeps.
            patience: seconds without a step after which a rank is not waited for.
        """
        self._kept, self._patience = kept, patience
        self._clients: dict[int, _Client] = {}
        """By rank, those that are waited for."""

    def join(self, rank: int, number: int, step: int, now: float) -> None:
        """Notes that a client takes part, and comes to a step next. An earlier client of the rank
        is not heard any more.

        Args:
            number: of the client; see `JobRegistry.register_client`.
        """
        known = self._clients.get(rank, _Client(-1, 0, 0.0))
        if number >= known.number:
            step = max(step, known.step) if number == known.number else step
            self._clients[rank] = _Client(number, step, now)

    def came(self, rank: int, number: int, step: int, now: float) -> None:
        """Notes that a client that takes part comes to a step next. It may be told late."""
        known = self._clients.get(rank)
        if known is not None and number == known.number and step > known.step:
            self._clients[rank] = _Client(number, step, now)

    def leave(self, rank: int, number: int) -> None:
        """Notes that a client takes no more steps."""
        known = self._clients.get(rank)
        if known is not None and known.number <= number:
            del self._clients[rank]

    @property
    def room(self) -> Room:
        """How far any rank may go."""
        last = min((each.step for each in self._clients.values()), default=None)
        if last is None:
            return FREE
        behind = {rank: last for rank, each in self._clients.items() if each.step == last}
        return Room(last + self._kept, behind)

    def held(self) -> list[str]:
        """Who waits for whom, a sentence each without a full stop."""
        room = self.room
        return [
            f"rank {rank} waits: {room.why(each.step)}"
            for rank, each in sorted(self._clients.items())
            if each.step >= room.limit
        ]

    def drop_late(self, now: float) -> list[str]:
        """Waits no longer for ranks that hold others and have taken no step for too long. Returns a
        sentence for each, without a full stop."""
        furthest = max((each.step for each in self._clients.values()), default=0)
        late = {
            rank: each.step
            for rank, each in sorted(self._clients.items())
            if now - each.since > self._patience and each.step + self._kept <= furthest
        }
        for rank in late:
            del self._clients[rank]
        return [
            f"rank {rank} has not come beyond step {step:,} for {self._patience:g} s, and is not "
            "waited for any longer; raise patience= of ServiceFaults to wait longer"
            for rank, step in late.items()
        ]
