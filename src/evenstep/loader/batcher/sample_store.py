"""Samples that have arrived and are not collated yet, by arrival number."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.loader.batcher.reception import Received

__all__ = ["Arrived", "Closed", "SampleStore"]


class Closed(Exception):
    """The trainer has left this epoch: stop working on it."""


class Arrived(NamedTuple):
    """Some samples, without what is in them."""

    columns: Int64Array
    numbers: Int64Array
    digests: Int64Array | None


class SampleStore:
    """Thread-safe. One thread puts, one takes columns, any take samples."""

    def __init__(self, limit: int) -> None:
        """
        Args:
            limit: samples held before `put` waits.
        """
        self._limit = limit
        self._changed = threading.Condition()
        self._samples: dict[int, tuple[Any, Any]] = {}  # arrival number -> (sample, index)
        self._new: deque[Arrived] = deque()
        self._stopped = False
        self._ended = False
        self._closed = False
        self._failure: Exception | None = None

    def put(self, received: Received) -> None:
        """Adds samples, once there is room for them. Those that are planned already are only taken
        by number; nobody asks for their columns."""
        numbers, planned = received.numbers, received.planned
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._stopped or len(self._samples) < self._limit
            )
            if self._ended or (self._stopped and not planned):
                raise Closed
            pairs = zip(received.samples, received.indices, strict=True)
            self._samples.update(zip(numbers.tolist(), pairs, strict=True))
            if len(numbers) > planned:
                digests = received.digests
                self._new.append(
                    Arrived(
                        received.columns[planned:],
                        numbers[planned:],
                        digests if digests is None else digests[planned:],
                    )
                )
            self._changed.notify_all()

    def stop(self) -> None:
        """No more columns are wanted: `put` takes what is planned already, and nothing else."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def end(self, failure: Exception | None = None) -> None:
        """No more samples are taken in, because of `failure` if there was one."""
        with self._changed:
            self._ended, self._failure = True, self._failure or failure
            self._changed.notify_all()

    def next_arrived(self) -> Arrived | None:
        """What planning needs of the next samples, or None at the end. Raises what ended the intake
        early."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._new or self._ended)
            if self._closed:
                raise Closed
            if self._new:
                return self._new.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def take(self, numbers: Int64Array) -> tuple[list[Any], tuple[Any, ...]]:
        """Removes samples, as soon as all are there, and gives them with their dataset indices."""
        with self._changed:
            self._await(numbers.tolist())
            pairs = [self._samples.pop(number) for number in numbers.tolist()]
            self._changed.notify_all()
        return [sample for sample, _ in pairs], tuple(index for _, index in pairs)

    def peek(self, number: int) -> Any:
        """A sample that stays where it is."""
        with self._changed:
            self._await([number])
            return self._samples[number][0]

    def _await(self, numbers: list[int]) -> None:
        def there() -> bool:
            return all(number in self._samples for number in numbers)

        self._changed.wait_for(lambda: there() or self._ended)
        if self._closed:
            raise Closed
        if not there():
            raise self._failure or InvariantError(f"samples {numbers} never arrived")

    def close(self) -> None:
        with self._changed:
            self._ended = self._closed = True
            self._samples.clear()
            self._changed.notify_all()
