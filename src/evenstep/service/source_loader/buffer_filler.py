"""`BufferFiller`: the threads in which a loader's buffers are filled.

Buffers from which samples were taken wait in a queue and are filled in turn, a chunk of work each.
Slow sources, a single sample of which is a chunk, have their own queue and threads, so that no
other source waits for them. A thread is started when there is first work for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from evenstep.service.source_loader.source_buffer import SourceBuffer

_SLOW_THREADS = 4
_END_SECONDS = 5.0  # that `close` waits for a thread


class _Lane:
    """Buffers that wait for a thread, and the threads that serve them."""

    def __init__(self, lock: threading.Lock, threads: int) -> None:
        self.changed = threading.Condition(lock)
        self.queue: deque[SourceBuffer] = deque()
        self.most = threads
        self.started, self.idle = 0, 0

    @property
    def filling(self) -> int:
        return self.started - self.idle


class BufferFiller:
    """See the module docstring."""

    def __init__(self, *, workers: int) -> None:
        """
        Args:
            workers: processes that prepare samples, 0 for none. Slow sources leave one of them to
                the others.
        """
        self._workers = workers
        self.failure: BaseException | None = None
        """An error that a fill has raised. Nothing is filled after it."""
        self._lock = threading.Lock()
        # A second thread keeps workers busy while the first unpacks what they have sent.
        self._quick = _Lane(self._lock, 2 if workers else 1)
        self._slow = _Lane(
            self._lock, max(min(workers - 1, _SLOW_THREADS), 1) if workers else _SLOW_THREADS
        )
        self._busy: set[SourceBuffer] = set()  # those that wait or are being filled
        self._threads: list[threading.Thread] = []
        self._ended = True

    def start(self) -> None:
        """Fills buffers from now on."""
        self._ended = False

    def add(self, buffers: Iterable[SourceBuffer]) -> None:
        """Fills those of the buffers that have room."""
        with self._lock:
            if self._ended:
                return
            for buffer in buffers:
                if buffer not in self._busy and buffer.has_room(much=True):
                    self._busy.add(buffer)
                    self._put(buffer)

    def close(self) -> None:
        """Ends the threads, each after the chunk that it is at. Idempotent."""
        with self._lock:
            self._end()
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _end(self) -> None:
        self._ended = True
        for lane in (self._quick, self._slow):
            lane.changed.notify_all()

    def _put(self, buffer: SourceBuffer) -> None:
        lane = self._slow if buffer.slow else self._quick
        lane.queue.append(buffer)
        if len(lane.queue) <= lane.idle or lane.started == lane.most:
            lane.changed.notify()
            return
        lane.started += 1
        name = f"evenstep-fill-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, lane: _Lane) -> None:
        while (buffer := self._next(lane)) is not None:
            try:
                buffer.fill_chunk(self._at_most(lane))
            except BaseException as error:
                with self._lock:
                    if not self._ended:  # ending interrupts what it does
                        self.failure = error
                    self._end()
                return
            with self._lock:
                if buffer.has_room():
                    self._put(buffer)
                else:
                    self._busy.discard(buffer)

    def _at_most(self, lane: _Lane) -> int | None:
        """Samples of a chunk. Slow sources share the workers, and leave one to others that want
        any."""
        if lane is not self._slow or not self._workers:
            return None
        with self._lock:
            wanted = bool(self._quick.queue or self._quick.filling)
            return max((self._workers - wanted) // max(lane.filling, 1), 1)

    def _next(self, lane: _Lane) -> SourceBuffer | None:
        with self._lock:
            lane.idle += 1
            while not lane.queue and not self._ended:
                lane.changed.wait()
            lane.idle -= 1
            return None if self._ended else lane.queue.popleft()
