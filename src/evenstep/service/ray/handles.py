"""Handles whose roles are actors of Ray.

Errors that evenstep raises on purpose come back as answers, so that who asks catches what was
raised, without a traceback of another process around it. An actor that is gone is told of by name.

Messages go as bytes, and so do answers without samples in them: plain pickle takes a fraction of
what Ray takes to find out how each value travels.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import LoaderDiedError
from evenstep.service.handles import Message, Reply
from evenstep.service.ray.import_ray import import_ray
from evenstep.service.ray.priority_lock import WaitTimer

__all__ = ["Answer", "RayHandle", "RayReply", "died", "opened", "packed"]

_OF_USERS = ("fail", "report")
"""Messages with what may have no name by which another process could import it."""


@dataclass(frozen=True)
class Answer:
    """What an actor gives back."""

    value: Any = None
    """What the role says; a list of it, by message, from `RoleActor.handle`."""
    error: Exception | None = None
    """Raised instead."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds that it took, by what was done."""


def packed(messages: Sequence[Message]) -> bytes:
    """What an actor is sent."""
    if any(message in _OF_USERS for message, _ in messages):
        sent: bytes = import_ray().cloudpickle.dumps(list(messages))
        return sent
    return pickle.dumps(list(messages), pickle.HIGHEST_PROTOCOL)


def opened(told: Answer | bytes) -> Answer:
    """What it gives back."""
    answer: Answer = pickle.loads(told) if isinstance(told, bytes) else told
    return answer


def died(name: str, error: Exception | None = None) -> LoaderDiedError:
    """An actor is gone."""
    told = LoaderDiedError(
        f"{name} of the service died; it ran out of memory or was killed, see its log and the "
        "system's. Start the service again from the state last saved"
    )
    told.__cause__ = error
    return told


class RayHandle:
    """A role that an actor plays. Can be sent to other processes."""

    def __init__(
        self,
        actor: Any,
        name: str,
        *,
        alarm: Any = None,
        meter: WaitTimer | None = None,
        told: Callable[[Answer], None] | None = None,
    ) -> None:
        """
        Args:
            actor: Ray's handle.
            name: for errors.
            alarm: a reference that is there when something went wrong anywhere: whoever waits for
                an answer, or takes one, raises its error instead.
            meter: seconds waited for answers are added to it, by message; of several, the last.
            told: called with each answer that is taken.
        """
        self.actor, self.name = actor, name
        self.alarm, self.meter, self.told = alarm, meter, told

    def start(self, message: str, *arguments: Any) -> Reply:
        return RayReply(self, self._sent([(message, arguments)]), message, alone=True)

    def start_all(self, messages: Sequence[Message]) -> Reply:
        return RayReply(self, self._sent(messages), messages[-1][0])

    def _sent(self, messages: Sequence[Message]) -> Any:
        return self.actor.handle.remote(packed(messages))

    def using(
        self,
        *,
        alarm: Any = None,
        meter: WaitTimer | None = None,
        told: Callable[[Answer], None] | None = None,
    ) -> RayHandle:
        """The same actor, for one who asks."""
        return RayHandle(self.actor, self.name, alarm=alarm, meter=meter, told=told)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.actor, self.name)


class RayReply:
    """An answer that is under way, or in Ray's object store."""

    def __init__(
        self, handle: RayHandle, reference: Any, message: str, *, alone: bool = False
    ) -> None:
        """
        Args:
            message: the last that it answers.
            alone: whether it is the only one, of which the answer is wanted and not a list.
        """
        self._handle, self._reference = handle, reference
        self._message, self._alone = message, alone

    def result(self) -> Any:
        """
        Raises:
            LoaderDiedError: the actor died, or another that the service cannot do without.
            EvenstepError: what the role raised.
        """
        ray, handle = import_ray(), self._handle
        begin = time.perf_counter()
        try:
            if handle.alarm is not None:
                self._heed(ray)
            told = ray.get(self._reference)
            if isinstance(told, ray.ObjectRef):  # see `shared`
                told = ray.get(told)
        except (ray.exceptions.RayActorError, ray.exceptions.OwnerDiedError) as error:
            raise died(handle.name, error) from error
        finally:
            if handle.meter is not None:
                handle.meter.add(self._message, time.perf_counter() - begin)
        answer = opened(told)
        if answer.error is not None:
            raise answer.error
        if handle.told is not None:
            handle.told(answer)
        return answer.value[0] if self._alone else answer.value

    def _heed(self, ray: Any) -> None:
        """Waits until the answer is there; an alarm comes first."""
        alarm = self._handle.alarm
        rung, _ = ray.wait([alarm], timeout=0)
        if not rung:
            rung, _ = ray.wait([self._reference, alarm], num_returns=1)
        if alarm in rung:
            try:
                told: Answer = ray.get(alarm)
            except ray.exceptions.RayActorError as error:
                raise died("the desk", error) from error
            assert told.error is not None
            raise told.error
