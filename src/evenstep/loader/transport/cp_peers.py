"""Context-parallel ranks, which prepare the same samples and share every micro-batch of them.

Of a loader's process group, C neighbours share: number n is context-parallel rank n mod C of the
data-parallel rank n div C. Each of them prepares and plans what its data-parallel rank trains on,
alike, and cuts its own shard out of it; so only plans and messages have to agree, which they do
where samples are a function of the index. That they are is not taken on trust: all peers of a rank
send the same messages, which tell what their samples hold, and one that differs is an error on all
ranks before any batch of that round is delivered.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.protocol.wire import abort_message, is_abort

__all__ = ["GroupPlace", "WindowChecksum"]


_DIGEST = struct.Struct("<I")


@dataclass(frozen=True)
class GroupPlace:
    """Where a process stands in its loader's group."""

    number: int
    """Of this process in the group."""
    size: int
    context_parallel: int = 1

    def __post_init__(self) -> None:
        if self.size % self.context_parallel:
            raise ConfigurationError(
                f"context_parallel={self.context_parallel} ranks share a micro-batch, and the "
                f"loader's process group has {self.size}, which is no multiple of it; pass group=, "
                "all ranks of data and context parallelism"
            )

    @property
    def rank(self) -> int:
        """The data-parallel rank."""
        return self.number // self.context_parallel

    @property
    def world_size(self) -> int:
        """Data-parallel ranks."""
        return self.size // self.context_parallel

    @property
    def context_rank(self) -> int:
        return self.number % self.context_parallel

    def fold(self, messages: Sequence[bytes]) -> list[bytes]:
        """One message per data-parallel rank, out of those of all processes of the group.

        Every process folds the same messages, so all come to the same end.
        """
        if self.context_parallel == 1:
            return list(messages)
        starts = range(0, self.size, self.context_parallel)
        return [_agreed(start, messages[start : start + self.context_parallel]) for start in starts]


class WindowChecksum:
    """What the samples that have been in a rank's window held, as a suffix of its messages."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Int64Array, Int64Array]] = deque()
        self._digest = 0

    def note(self, numbers: Int64Array, digests: Int64Array) -> None:
        """Takes samples in order of arrival, at least one."""
        self._waiting.append((numbers, digests))

    def sign(self, message: bytes, taken: int) -> bytes:
        """
        Args:
            taken: arrival numbers below it have been in a window. What has arrived besides hangs on
                the time, and does not count.
        """
        while self._waiting and self._waiting[0][0][0] < taken:
            numbers, digests = self._waiting.popleft()
            count = int(np.searchsorted(numbers, taken))
            # Sample by sample, since peers may receive them in other portions.
            pairs = np.stack([numbers[:count], digests[:count]], axis=1)
            self._digest = zlib.crc32(pairs.tobytes(), self._digest)
            if count < len(numbers):
                self._waiting.appendleft((numbers[count:], digests[count:]))
        return message + _DIGEST.pack(self._digest)


def _agreed(first: int, peers: Sequence[bytes]) -> bytes:
    """The message of all peers, or one that says what is wrong.

    Args:
        first: number of the first of the peers in the group.
    """
    failed = next((peer for peer in peers if is_abort(peer)), None)
    if failed is not None:
        return failed
    if not all(peers):
        return b""  # one has left
    others = [first + number for number, peer in enumerate(peers) if peer != peers[0]]
    if not others:
        return peers[0][: -_DIGEST.size]
    alike = len({peer[: -_DIGEST.size] for peer in peers}) == 1
    return abort_message(
        "its context-parallel ranks share every micro-batch, so they must prepare the same "
        f"samples, and the {'samples' if alike else 'lengths, arguments or progress'} of rank "
        f"{', '.join(map(str, others))} of the group differ from those of rank {first}; build the "
        "loader alike on all of them, and make what the dataset returns a function of the index"
    )
