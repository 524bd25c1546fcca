"""What the loader uses of `queue` and `concurrent.futures`, simulated."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from simulated_threading import Event, Simulated, world


class SimpleQueue(Simulated):
    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[Any] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        world().pause()
        self._items.append(item)
        world().wake(self._waiting)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        limit = timeout if block else 0
        if not world().until(lambda: bool(self._items), self._waiting, timeout=limit):
            raise queue.Empty
        return self._items.popleft()


class Future(Simulated):
    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __init__(self) -> None:
        self._done = Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], Any]] = []

    def set_running_or_notify_cancel(self) -> bool:
        return True

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        if self._done.is_set():
            callback(self)
        else:
            self._callbacks.append(callback)

    def _end(self) -> None:
        self._done.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def set_result(self, result: Any) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: BaseException | None) -> None:
        self._error = error
        self._end()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._error

    def done(self) -> bool:
        return self._done.is_set()
