"""Samples between intake and collation, by arrival number. The threads of a batcher share it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.loader.batcher.chunk_checks import ReadySamples


class Closed(Exception):
    """The trainer has left this pass: stop working on it."""


class SampleStore:
    """Thread-safe: the intake thread puts, the plan thread reads metadata, any thread takes."""

    def __init__(self, limit: int) -> None:
        """
        Args:
            limit: samples held before `put` waits.
        """
        self._limit = limit
        self._changed = threading.Condition()
        self._samples: dict[int, tuple[Any, Any]] = {}  # arrival number -> (sample, index)
        self._unplanned: deque[ReadySamples] = deque()
        self._stopped = False
        self._ended = False
        self._closed = False
        self._failure: Exception | None = None

    def put(self, ready: ReadySamples) -> None:
        """Adds samples, once there is room for them.

        Raises:
            Closed: no more samples are accepted.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._stopped or len(self._samples) < self._limit
            )
            if self._ended or (self._stopped and not ready.planned):
                raise Closed
            pairs = zip(ready.samples, ready.indices, strict=True)
            self._samples.update(zip(ready.numbers.tolist(), pairs, strict=True))
            if (unplanned := ready.unplanned()) is not None:
                self._unplanned.append(unplanned)
            self._changed.notify_all()

    def make_room(self, limit: int) -> None:
        """Sets how many samples are held before `put` waits."""
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    def stop(self) -> None:
        """Planning has ended: from now on `put` accepts only samples that are planned already."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def end(self, failure: Exception | None = None) -> None:
        """No more samples will be put, because of `failure` if there was one."""
        with self._changed:
            self._ended, self._failure = True, self._failure or failure
            self._changed.notify_all()

    def check(self) -> None:
        """Raises `Closed` if no more samples are accepted."""
        if self._ended:
            raise Closed

    def next_unplanned(self) -> ReadySamples | None:
        """What planning needs to know about the next samples, without the samples; None at the end.
        Raises the failure that ended the intake, if there was one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._unplanned or self._ended)
            if self._closed:
                raise Closed
            if self._unplanned:
                return self._unplanned.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def take(self, numbers: Int64Array) -> tuple[list[Any], tuple[Any, ...]]:
        """Removes samples as soon as all are there; returns them and their dataset indices."""
        with self._changed:
            self._await(numbers.tolist())
            pairs = [self._samples.pop(number) for number in numbers.tolist()]
            self._changed.notify_all()
        return [sample for sample, _ in pairs], tuple(index for _, index in pairs)

    def peek(self, numbers: list[int]) -> list[Any]:
        """Returns samples as soon as all are there, and leaves them in the store."""
        with self._changed:
            self._await(numbers)
            return [self._samples[number][0] for number in numbers]

    def index_of(self, number: int) -> Any:
        """The dataset index of a sample that is there; None of an iterable dataset."""
        with self._changed:
            return self._samples[number][1]

    def _await(self, numbers: list[int]) -> None:
        def all_there() -> bool:
            return all(number in self._samples for number in numbers)

        self._changed.wait_for(lambda: all_there() or self._ended)
        if self._closed:
            raise Closed
        if not all_there():
            raise self._failure or InvariantError(f"samples {numbers} never arrived")

    def close(self) -> None:
        """The trainer has left: every call that waits raises `Closed`."""
        with self._changed:
            self._ended = self._closed = True
            self._samples.clear()
            self._changed.notify_all()
