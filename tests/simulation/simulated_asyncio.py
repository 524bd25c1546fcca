"""An event loop of a simulated process: asyncio's own tasks and futures under the simulated clock.

It runs in one thread, and takes no step of the scheduler but where it waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from simulated_objects import RayActorError
from simulated_world import World


class _Callback:
    """As `asyncio.Handle`."""

    def __init__(self, work: Callable[..., Any], args: Any, context: Any) -> None:
        self._work, self._args = work, args
        self._context = context or contextvars.copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def run(self) -> None:
        if not self._cancelled:
            self._context.run(self._work, *self._args)


class Loop(asyncio.AbstractEventLoop):
    def __init__(self, world: World) -> None:
        self._world = world
        self._ready: deque[_Callback] = deque()
        self._later: list[tuple[float, int, _Callback]] = []
        self._numbers = itertools.count()
        self._waiting: list[Any] = []

    def run_forever(self) -> None:
        world = self._world
        while True:
            due = self._later[0][0] if self._later else None
            limit = None if due is None else max(due - world.now, 0.0)
            world.until(lambda: bool(self._ready), self._waiting, timeout=limit)
            while self._later and self._later[0][0] <= world.now:
                self._ready.append(heapq.heappop(self._later)[2])
            asyncio._set_running_loop(self)
            try:
                for _ in range(len(self._ready)):
                    self._ready.popleft().run()
            finally:
                asyncio._set_running_loop(None)

    # What asyncio calls

    def time(self) -> float:
        return self._world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, work: Any, *args: Any, context: Any = None) -> Any:
        callback = _Callback(work, args, context)
        self._ready.append(callback)
        return callback

    def call_soon_threadsafe(self, work: Any, *args: Any, context: Any = None) -> Any:
        callback = self.call_soon(work, *args, context=context)
        self._world.wake(self._waiting)
        return callback

    def call_at(self, when: float, work: Any, *args: Any, context: Any = None) -> Any:
        callback = _Callback(work, args, context)
        heapq.heappush(self._later, (when, next(self._numbers), callback))
        return callback

    def call_later(self, delay: float, work: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, work, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(work, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody awaits; that of a dead actor is known otherwise."""
        error = context.get("exception")
        if error is not None and not isinstance(error, RayActorError):
            self._world.note(f"{context['message']}: {error!r}")
