"""Dataset indices from the trainer's sampler, cut into the chunks that workers prepare.

The sampler runs in the trainer process, where a feeder thread sends its indices in blocks. The
operating system's pipe holds the feeder back while the workers are busy. Where samples are dealt on
demand, the feeder sends what the batcher asks it for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.loader.transport.first_rows import FirstRows
from evenstep.loader.workers.chunks import ChunkRequest

_POLL_SECONDS = 0.2  # between two checks whether the pass continues


class IndexFeed:
    """The batch sampler of the inner loader: turns blocks from the feeder into chunk requests."""

    def __init__(self, connection: Connection, chunk_size: int) -> None:
        self._connection = connection
        self._chunk_size = chunk_size
        self.epoch_seed = 0
        self.serial = 0
        self.taken = 0
        """Samples with lower arrival numbers belong to a resumed round."""
        self.deals = False
        """Samples are dealt on demand, so the feeder may have nothing to send for now."""
        self.check: Callable[[], None] = lambda: None
        """Raises an exception once the pass has failed or was left, as then no block may come."""
        self.starting = False
        """The inner loader is being started, and nothing can be asked of the feeder yet."""
        self.first_rows: FirstRows | None = None
        """What this rank tells the others, once the feeder has said it."""
        self.requested: deque[tuple[tuple[int, ...], tuple[Any, ...]]] = deque()
        """Chunks requested and not yet delivered, in order: arrival numbers and dataset indices."""
        self._kept: list[tuple[int, Any]] = []
        """A block of the next pass, if it has come already."""

    def request(self, entries: Int64Array | None) -> None:
        """Asks for the indices at some entries of the ranks' stream; None for no more."""
        with contextlib.suppress(OSError):  # the trainer has closed its end
            self._connection.send((self.serial, entries))

    def drain(self, over: threading.Event) -> None:
        """Drops what still comes in a pass that prepares no more samples, until no more is asked
        for: a feeder that cannot send does not read either, and the asking thread would hang."""
        with contextlib.suppress(EOFError, OSError):
            while not (over.is_set() or self._kept):
                if self._connection.poll(_POLL_SECONDS):
                    received: tuple[int, Any] = self._connection.recv()
                    if received[0] > self.serial:
                        self._kept.append(received)

    def _must_not_wait(self) -> bool:
        return self.deals and (self.starting or any(numbers for numbers, _ in self.requested))

    def _comes(self, timeout: float = 0) -> bool:
        return bool(self._kept) or self._connection.poll(timeout)

    def __iter__(self) -> Iterator[list[ChunkRequest]]:
        self.requested.clear()
        self.first_rows = None
        waiting: list[tuple[int, Any]] = []
        while True:
            # The inner loader asks for a request before it hands over a chunk that has come. While
            # that may be the chunk that decides the next deal, it gets a request of nothing.
            while self._must_not_wait() and not self._comes():
                self.requested.append(((), ()))
                yield [ChunkRequest(self.epoch_seed, ())]
            while not self._comes(_POLL_SECONDS):
                self.check()
            serial, block = self._kept.pop() if self._kept else self._connection.recv()
            if serial != self.serial:
                continue  # left over from an abandoned pass
            if isinstance(block, FirstRows):
                self.first_rows = block
                continue
            if isinstance(block, Exception):
                raise block
            waiting.extend(block or ())
            # What a deal leaves over is a smaller chunk. Waiting for the next deal could hang, and
            # chunks would depend on timing.
            while len(waiting) >= self._chunk_size or (not block and waiting):
                size = self._chunk_size
                # Samples whose steps are planned already do not fail with those that follow.
                planned = sum(number < self.taken for number, _ in waiting[:size])
                numbers, indices = zip(*waiting[: planned or size])
                self.requested.append((numbers, indices))
                yield [ChunkRequest(self.epoch_seed, indices)]
                del waiting[: planned or size]
            if block is None:
                return
