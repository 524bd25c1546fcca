"""`RayChannel`: messages as calls of an actor, for jobs with ``transport="ray"``.

Messages are sent as bytes, and so are answers without samples: plain pickle takes a fraction of the
time that Ray needs to find out how to serialize each value. Large plans go into the object store
once, for all constructors (`PlanCache`). Arrays and tensors are sent outside the pickled rest, as
copies that the receiver owns: Ray itself gives read-only views of its object store, whose contents
are undefined once the process has left Ray, and torch copies the whole storage behind a view.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evenstep.service.messages import Message
from evenstep.service.remote.channels import Answer, PendingAnswer, RoleGoneError

if TYPE_CHECKING:
    import torch

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
            born: of the process that is to answer, as in `Location`; None for any. An actor that
                Ray has made again may play another loader, or none.
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
            if isinstance(sent, ray.ObjectRef):  # a large answer, see `PlanCache`
                sent = ray.get(sent)
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


def _decoded(sent: Answer | bytes | None) -> Answer:
    if sent is None:
        raise RoleGoneError
    answer: Answer = pickle.loads(sent) if isinstance(sent, bytes) else sent
    return answer


SHARED_BYTES = 64 * 1024
"""Answers up to this size are sent to each constructor: one message instead of two."""


class PlanCache:
    """References to the answers of one actor, by step."""

    def __init__(self, kept: int = 16) -> None:
        """
        Args:
            kept: steps whose answers are kept.
        """
        self._kept = kept
        self._references: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def reference(self, step: int, plan: Any, answer: bytes) -> Any:
        """The reference to a step's answer, the same for all that ask.

        Args:
            answer: with this plan; stored if that of the step is another one or none.
        """
        if step not in self._references or self._references[step][0] is not plan:
            self._references[step] = plan, import_ray().put(answer)
            while len(self._references) > self._kept:
                self._references.popitem(last=False)
        return self._references[step][1]


@cache
def register_arrays() -> None:
    """Registers the serializer of arrays in this process. Idempotent."""
    from ray.util import register_serializer

    register_serializer(np.ndarray, serializer=_packed_array, deserializer=_unpacked_array)


@cache
def register_tensors() -> None:
    """Registers the serializer of tensors in this process, which imports torch. Idempotent."""
    import torch
    from ray.util import register_serializer

    register_serializer(torch.Tensor, serializer=_packed_tensor, deserializer=_unpacked_tensor)


def _packed_array(array: npt.NDArray[Any]) -> tuple[Any, np.dtype[Any], tuple[int, ...]]:
    if array.dtype.hasobject:
        return list(array.flat), array.dtype, array.shape
    # As bytes: the buffer protocol knows neither dates nor Fortran order.
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return pickle.PickleBuffer(plain.data), array.dtype, array.shape


def _unpacked_array(packed: tuple[Any, np.dtype[Any], tuple[int, ...]]) -> npt.NDArray[Any]:
    held, dtype, shape = packed
    made: npt.NDArray[Any] = np.empty(shape, dtype)
    if dtype.hasobject:
        for index, value in enumerate(held):  # one by one, as they may be lists
            made.flat[index] = value
        return made
    made.reshape(-1).view(np.uint8)[:] = np.frombuffer(held, np.uint8)
    return made


def _packed_tensor(tensor: torch.Tensor) -> tuple[Any, str, tuple[int, ...]]:
    import torch

    plain = tensor.detach().to("cpu").contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    # As bytes, for any dtype: NumPy has neither bfloat16 nor 8-bit floats.
    return plain.reshape(-1).view(torch.uint8).numpy(), name, tuple(plain.shape)


def _unpacked_tensor(packed: tuple[Any, str, tuple[int, ...]]) -> torch.Tensor:
    import torch

    array, name, shape = packed
    return torch.from_numpy(array.copy()).view(getattr(torch, name)).reshape(shape)
