"""`SizedCache`: keeps up to a number of bytes; what was not used for longest goes first."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")
_IDLE = 32


@dataclass
class _Entry(Generic[Value]):
    value: Value
    size: int
    used: int


class SizedCache(Generic[Value]):
    """Values by key, each with its size. Any thread may use it, and whoever got a value may use it
    on after it was dropped here.

    A value is dropped when the limit is passed and all others were used since, or when it was not
    used while each other was 32 times, on average.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: dict[object, _Entry[Value]] = {}  # least recently used first
        self.size = 0
        """Bytes that are kept."""
        self._uses = 0
        # Reentrant, as what drops a value may be a garbage collection in the middle of the below.
        self._lock = threading.RLock()

    def get(self, key: object) -> Value | None:
        """The value of a key; None if it was never put here, or was dropped."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._use(key, entry)
            return entry.value

    def put(self, key: object, value: Value, size: int) -> None:
        """Keeps a value, in place of what the key had, unless it is larger than the limit."""
        entry = _Entry(value, size, 0)
        dropped = []  # freed after the lock is, as that takes a while
        with self._lock:
            dropped.append(self._pop(key))
            self.size += size
            self._use(key, entry)
            idle = self._uses - _IDLE * len(self._entries)
            while self._entries:
                oldest, entry = next(iter(self._entries.items()))
                if self.size <= self.limit and entry.used > idle:
                    break
                dropped.append(self._pop(oldest))

    def drop(self, key: object) -> None:
        """Idempotent."""
        with self._lock:
            dropped = self._pop(key)
        del dropped

    @property
    def share(self) -> int:
        """The part of the limit that each value may take if all take the same."""
        return self.limit // max(len(self._entries), 1)

    def _use(self, key: object, entry: _Entry[Value]) -> None:
        self._uses += 1
        entry.used = self._uses
        self._entries[key] = entry

    def _pop(self, key: object) -> _Entry[Value] | None:
        entry = self._entries.pop(key, None)
        self.size -= 0 if entry is None else entry.size
        return entry
