"""Threads that do not delay the exit of the process: `RoleThreads` handle a role's messages, and
`in_thread` runs what would block an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from evenstep.errors import EvenstepError

T = TypeVar("T")


class RoleThreads:
    """A thread pool that starts a thread when all others are busy. Unlike an executor's, its
    threads may wait for a role that never answers when the interpreter exits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._work = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Calls the function in one of the threads."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(EvenstepError("the service was closed"))
                return future
            self._work.put((future, lambda: function(*arguments)))
            self._idle -= 1
            if self._idle >= 0 or len(self._threads) == self._most:
                return future
            self._idle += 1
            thread = threading.Thread(target=self._serve, name="evenstep-role", daemon=True)
            self._threads.append(thread)
        thread.start()
        return future

    def close(self) -> None:
        """Ends the threads, each after its current call. Drops calls that have not started."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._work.put(None)

    def join(self, seconds: float) -> None:
        """Waits for the end of the threads, after `close`. One that is within torch as the
        interpreter ends would abort the process."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            future, call = work
            if future.set_running_or_notify_cancel():
                try:
                    if self._closed:
                        raise EvenstepError("the service was closed")
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._idle += 1


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Calls the function in a new thread, and waits for it in an event loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(tell_it: Callable[[Any], None], what: Any) -> None:
        if not done.done():  # nobody may wait any more
            tell_it(what)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = done.set_result, function(*arguments)
        except BaseException as error:
            outcome = done.set_exception, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="evenstep-role", daemon=True).start()
    return await done
