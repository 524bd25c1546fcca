"""`RayChannel`: messages as calls of an actor, for jobs with ``transport="ray"``.

Messages and answers are sent as bytes: plain pickle takes a fraction of the time that Ray needs to
find out how to serialize each value. A trainer keeps batches longer than Ray keeps its objects, and
may write to them, so the receiver copies the frames of an answer.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from evenstep.service.messages import Message
from evenstep.service.remote.channels import Answer, PendingAnswer, RoleGoneError
from evenstep.service.transport.frames import from_frames

_BESIDE = ("measure", "wait_forever")
"""Messages that an actor answers beside others, in threads of their own."""
_BY_CLOUDPICKLE = ("fail", "report")
"""Messages with users' objects, whose classes other processes may be unable to import."""


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "the service on Ray needs ray: pip install 'evenstep[service]'; or choose "
            "backend='processes', which runs on one machine without it"
        ) from error
    return ray


class RayChannel:
    """To a role in an actor."""

    def __init__(self, actor: Any, born: int | None = None) -> None:
        """
        Args:
            actor: Ray's handle.
            born: of the process that must answer, as in `Location`; None for any. An actor that Ray
                has restarted may run another loader, or none.
        """
        self.actor, self._born = actor, born

    def send(self, messages: Sequence[Message]) -> RayPending:
        name = messages[0][0]
        if name in _BESIDE:
            return RayPending(getattr(self.actor, name).remote())
        if any(message in _BY_CLOUDPICKLE for message, _ in messages):
            encoded: bytes = import_ray().cloudpickle.dumps(list(messages))
        else:
            encoded = pickle.dumps(list(messages), pickle.HIGHEST_PROTOCOL)
        return RayPending(self.actor.handle.remote(encoded, self._born))

    def close(self) -> None:
        pass


class RayPending:
    """An answer that is on its way, or in Ray's object store."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def first_of(self, others: Sequence[Any], seconds: float | None) -> PendingAnswer | None:
        pending = {each._reference: each for each in (self, *others)}
        ready, _ = import_ray().wait(list(pending), num_returns=1, timeout=seconds)
        return pending[ready[0]] if ready else None

    def answer(self) -> Answer:
        ray = import_ray()
        try:
            sent = ray.get(self._reference)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:  # also of a node that is gone or out of memory
            raise RoleGoneError from error
        return _decoded(sent)

    async def later(self) -> Answer:
        exceptions = import_ray().exceptions
        try:
            return _decoded(await self._reference)
        except exceptions.RayTaskError:
            raise
        except exceptions.RayError as error:
            raise RoleGoneError from error


def _decoded(sent: Answer | list[bytes] | None) -> Answer:
    if sent is None:
        raise RoleGoneError
    if not isinstance(sent, list):
        return sent
    # Ray's own are read-only, and undefined once this process has left Ray.
    answer: Answer = from_frames([memoryview(bytearray(frame)) for frame in sent])
    return answer
