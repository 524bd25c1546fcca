"""The prepared samples that a loader holds: `SampleWindow` and `PassedOver` of one source, and
`BufferBudget`, the bytes of all sources."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from evenstep.errors import StorageError
from evenstep.service.source_loader.preparer import Prepared, PrepareFailure

_MEMORY = 4  # budgets drawn, after which what was drawn counts half


@dataclass
class SampleWindow:
    """Positions about which everything is known."""

    begin: int
    end: int
    """Positions from `begin` to here are known."""
    held: list[Prepared] = field(default_factory=list)
    """The owned samples among them, in order."""
    size: int = 0
    """Their bytes."""
    over: bool = False
    """Whether the source ends at `end`."""
    failure: PrepareFailure | None = None
    """Why the sample at `end` cannot be drawn."""

    @property
    def outage(self) -> bool:
        """Whether the failure may have passed."""
        return self.failure is not None and isinstance(self.failure.error, StorageError)

    @property
    def ended(self) -> bool:
        """Whether nothing comes after it."""
        return self.over or self.failure is not None

    def within(self, begin: int, end: int) -> list[Prepared]:
        """The samples between two positions."""
        held = self.held
        return held[bisect_left(held, ((begin,),)) : bisect_left(held, ((end,),))]

    def add(self, more: Sequence[Prepared], size: int) -> None:
        """Appends samples that have that many bytes."""
        self.held += more
        self.size += size

    def move(self, begin: int) -> list[Prepared]:
        """Moves `begin` forward, at most to `end`; returns the samples before it."""
        left = self.within(self.begin, begin)
        del self.held[: len(left)]
        self.size -= sum(prepared.size for prepared in left)
        self.begin = max(self.begin, min(begin, self.end))
        return left


class PassedOver:
    """Samples before the window that were not taken. They can still be asked for."""

    def __init__(self) -> None:
        self.held: dict[int, Prepared] = {}
        """By position."""
        self.size = 0
        """Bytes of all."""

    def add(self, prepared: Prepared) -> None:
        self.pop(prepared.row[0])
        if not prepared.bad:
            self.held[prepared.row[0]] = prepared
            self.size += prepared.size

    def pop(self, position: int) -> Prepared | None:
        prepared = self.held.pop(position, None)
        if prepared is not None:
            self.size -= prepared.size
        return prepared

    def limit(self, size: float) -> None:
        """Drops the first ones that are more than so many bytes."""
        while self.held and self.size > size:
            self.pop(next(iter(self.held)))


class BufferBudget:
    """The bytes that all buffers of a loader may hold, shared by what is drawn. So every source is
    prepared ahead for about as many steps, whatever the weights, their schedule and the size of
    samples. Plans and batches do not depend on it."""

    def __init__(self, limit: int) -> None:
        """
        Args:
            limit: bytes of all buffers together.
        """
        self.limit = limit
        self._lock = threading.Lock()
        self._drawn: dict[Hashable, float] = {}  # bytes, by buffer
        self._total = 0.0

    def draw(self, buffer: Hashable, size: int) -> None:
        """Notes that samples of that many bytes were drawn from a buffer."""
        with self._lock:
            self._drawn[buffer] = self._drawn.get(buffer, 0.0) + size
            self._total += size
            if self._total > _MEMORY * self.limit:
                self._drawn = {each: drawn / 2 for each, drawn in self._drawn.items()}
                self._total = sum(self._drawn.values())

    def share(self, buffer: Hashable) -> float:
        """Bytes that a buffer may hold."""
        with self._lock:
            drawn = self._drawn.get(buffer, 0.0)
            return self.limit * drawn / self._total if drawn else 0.0
