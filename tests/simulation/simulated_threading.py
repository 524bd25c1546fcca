"""What the loader uses of `threading`, `queue` and `concurrent.futures`, simulated."""

from __future__ import annotations

import queue
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from simulated_world import Fiber, Killed, World, current


def world() -> World:
    return current().process.world


class Simulated:
    """Only what the loader uses is simulated; anything else must not pass for an error of its."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            world().violate(f"{type(self).__name__}.{name} is not simulated")
        raise AttributeError(name)


class Thread(Simulated):
    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "Thread"
        self.daemon = bool(daemon)
        self.fiber: Fiber | None = None

    def start(self) -> None:
        me = current()
        me.process.world.pause()
        if (error := me.process.fails.pop("start", None)) is not None:
            raise error
        self.fiber = Fiber(me.process, self.name, self._work)
        self.fiber.daemon = self.daemon
        self.fiber.thread = self
        me.process.world.spawn(self.fiber)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _work(self) -> None:
        try:
            self.run()
        except (Killed, SystemExit):
            pass
        except BaseException:
            world().violate(f"{self.name} ended with\n{traceback.format_exc()}")
        finally:
            del self._target, self._args, self._kwargs

    def join(self, timeout: float | None = None) -> None:
        assert self.fiber is not None
        fiber = self.fiber
        world().until(lambda: not fiber.alive, fiber.joined, timeout=timeout)

    def is_alive(self) -> bool:
        world().pause()
        return self.fiber is not None and self.fiber.alive

    @property
    def ident(self) -> int | None:
        return None if self.fiber is None else id(self.fiber)


class Timer(Thread):
    def __init__(self, interval: float, function: Callable[..., Any], args: Any = ()) -> None:
        super().__init__(target=function, args=args, daemon=True)
        self._interval = interval

    def run(self) -> None:
        world().sleep(self._interval)
        super().run()


def current_thread() -> Any:
    return getattr(current(), "thread", current())


def enumerate_threads() -> list[Any]:
    return [getattr(f, "thread", f) for f in current().process.fibers if f.alive]


class Local:
    """As `threading.local`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Local:
        made = super().__new__(cls)
        object.__setattr__(made, "_arguments", (args, kwargs))
        return made

    def _own(self) -> dict[str, Any]:
        locals_: dict[Any, dict[str, Any]] = vars(current()).setdefault("locals", {})
        if self not in locals_:
            locals_[self] = {}
            args, kwargs = self._arguments
            self.__init__(*args, **kwargs)  # type: ignore[misc]  # once in each thread
        return locals_[self]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._own()[name] = value

    def __delattr__(self, name: str) -> None:
        del self._own()[name]


class Lock(Simulated):
    def __init__(self) -> None:
        self._held = False
        self._waiting: list[Any] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        limit = (None if timeout < 0 else timeout) if blocking else 0
        if not world().until(lambda: not self._held, self._waiting, timeout=limit):
            return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        world().wake(self._waiting)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class Condition(Simulated):
    """Over a lock of its own."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[list[Any]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        told: list[bool] = []
        mine: list[Any] = []
        entry = [told, mine]
        self._waiting.append(entry)
        self._lock.release()
        try:
            return world().until(lambda: bool(told), mine, timeout=timeout)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        due = None if timeout is None else world().now + timeout
        while not (result := predicate()):
            left = None if due is None else due - world().now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for told, waiting in self._waiting[:n]:
            told.append(True)
            world().wake(waiting)
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event(Simulated):
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Any] = []

    def is_set(self) -> bool:
        world().pause()
        return self._set

    def set(self) -> None:
        world().pause()
        self._set = True
        world().wake(self._waiting)

    def clear(self) -> None:
        world().pause()
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return world().until(lambda: self._set, self._waiting, timeout=timeout)


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
