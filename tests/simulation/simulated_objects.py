"""Values that travel between simulated actors, and the errors that come in their place."""

from __future__ import annotations

import copyreg
import io
import pickle
import weakref
from typing import Any

from processes import Process
from simulated_world import World


class RayError(Exception):
    pass


class RayActorError(RayError):
    """An actor has died, or cannot be reached."""


class RayTaskError(RayError):
    pass


class OwnerDiedError(RayError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class Shared:
    """A handle or reference: a copy of a value has the same."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For a pickle that is no `Parcel`."""
        _shared[id(self)] = self
        return _shared_of, (id(self),)


def _shared_of(number: int) -> Shared:
    return _shared[number]


_shared: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Shared] = []

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Shared):
            self.shared.append(obj)
            return len(self.shared) - 1
        return None


class Parcel:
    """A value on its way: a copy."""

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(value)
        self._data, self._shared = file.getvalue(), pickler.shared

    def open(self) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(self._data))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        return unpickler.load()


class ObjectRef(Shared):
    """A value that is there, will be, or cannot come any more."""

    def __init__(self, owner: Process | None = None) -> None:
        """
        Args:
            owner: the value is lost when this process ends.
        """
        self._owner = owner
        self._parcel: Parcel | None = None
        self._error: RayError | None = None
        self.done = False
        self.waiters: list[Any] = []

    def resolve(self, world: World, parcel: Parcel | None, error: RayError | None = None) -> None:
        if self.done:
            return
        self.done, self._parcel, self._error = True, parcel, error
        world.wake(self.waiters)

    def value(self) -> Any:
        if self._owner is not None and not self._owner.alive:
            raise OwnerDiedError("the owner of an object has died")
        if self._error is not None:
            raise self._error.with_traceback(None)
        assert self._parcel is not None
        return self._parcel.open()
