"""Dataset indices from the trainer's sampler, cut into the chunks that workers prepare.

The sampler runs in the trainer process, where a feeder thread sends its indices in blocks. The
operating system's pipe holds the feeder back while the workers are busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from evenstep.errors import SampleError
from evenstep.loader.workers.chunks import ChunkRequest


class FeederError(SampleError):
    """The sampler raised in the trainer process."""


class IndexFeed:
    """The batch sampler of the inner loader: turns blocks from the feeder into chunk requests."""

    def __init__(self, connection: Connection, chunk_size: int) -> None:
        self._connection = connection
        self._chunk_size = chunk_size
        self.epoch_seed = 0
        self.serial = 0
        self.requested: deque[tuple[tuple[int, ...], tuple[Any, ...]]] = deque()
        """Chunks requested and not yet delivered, in order: arrival numbers and dataset indices."""

    def __iter__(self) -> Iterator[list[ChunkRequest]]:
        self.requested.clear()
        waiting: list[tuple[int, Any]] = []
        while True:
            serial, block = self._connection.recv()
            if serial != self.serial:
                continue  # left over from an abandoned pass
            if isinstance(block, Exception):
                raise block
            waiting.extend(block or ())
            while len(waiting) >= self._chunk_size or (block is None and waiting):
                numbers, indices = zip(*waiting[: self._chunk_size])
                self.requested.append((numbers, indices))
                yield [ChunkRequest(self.epoch_seed, indices)]
                del waiting[: self._chunk_size]
            if block is None:
                return
