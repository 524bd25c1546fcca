"""`BufferBudget`: the bytes that all buffers of a loader may hold, shared by what is drawn.

So every source is prepared ahead for about as many steps, whatever the weights, their schedule and
the size of samples. Plans and batches do not depend on it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

_MEMORY = 4  # budgets drawn, after which what was drawn counts half


class BufferBudget:
    """See the module docstring."""

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
