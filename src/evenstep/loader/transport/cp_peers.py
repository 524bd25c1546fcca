"""Context-parallel peers, which prepare the same samples and share every micro-batch of them.

C neighbours in a loader's process group are peers: process n is context-parallel rank n mod C of
data-parallel rank n div C. Every peer prepares and plans what its data-parallel rank trains on, and
cuts its own shard out of it. Plans and messages agree where samples are a function of the index.
That is checked: peers send the same messages, with a checksum of their samples, and a message that
differs is an error on all ranks before any batch of that round is delivered.
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

_DIGEST = struct.Struct("<I")


@dataclass(frozen=True)
class GroupPlace:
    """Where a process stands in its loader's process group."""

    number: int
    """This process's rank in the group."""
    size: int
    """Processes of the group."""
    context_parallel: int = 1

    def __post_init__(self) -> None:
        if self.size % self.context_parallel:
            raise ConfigurationError(
                f"context_parallel={self.context_parallel} ranks share a micro-batch, and the "
                f"loader's process group has {self.size}, which is not a multiple of it; pass "
                "group=, all ranks of data and context parallelism"
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
        """One message per data-parallel rank, from those of all processes of the group.

        Every process folds the same messages, so all get the same result.
        """
        if self.context_parallel == 1:
            return list(messages)
        starts = range(0, self.size, self.context_parallel)
        return [_agreed(start, messages[start : start + self.context_parallel]) for start in starts]


class WindowChecksum:
    """Checksum of the samples that have been in a rank's window, as a suffix of its messages."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Int64Array, Int64Array]] = deque()
        self._digest = 0

    def note(self, numbers: Int64Array, digests: Int64Array) -> None:
        """Adds samples in order of arrival; none where all of a chunk were skipped."""
        if len(numbers):
            self._waiting.append((numbers, digests))

    def sign(self, message: bytes, taken: int) -> bytes:
        """The message with the checksum appended.

        Args:
            taken: arrival numbers below it have been in a window. Which others have arrived depends
                on timing, so they do not count.
        """
        while self._waiting and self._waiting[0][0][0] < taken:
            numbers, digests = self._waiting.popleft()
            count = int(np.searchsorted(numbers, taken))
            # Sample by sample, since peers may receive them in other chunks.
            pairs = np.stack([numbers[:count], digests[:count]], axis=1)
            self._digest = zlib.crc32(pairs.tobytes(), self._digest)
            if count < len(numbers):
                self._waiting.appendleft((numbers[count:], digests[count:]))
        return message + _DIGEST.pack(self._digest)


def _agreed(first: int, peers: Sequence[bytes]) -> bytes:
    """The message that all peers sent, or an abort message that says what differs.

    Args:
        first: rank in the group of the first of the peers.
    """
    failed = next((peer for peer in peers if is_abort(peer)), None)
    if failed is not None:
        return failed
    if not all(peers):
        return b""  # one needs no more steps
    others = [first + number for number, peer in enumerate(peers) if peer != peers[0]]
    if not others:
        return peers[0][: -_DIGEST.size]
    samples_only = len({peer[: -_DIGEST.size] for peer in peers}) == 1
    what = "samples" if samples_only else "lengths, arguments or progress"
    return abort_message(
        "its context-parallel ranks share every micro-batch, so they must prepare the same "
        f"samples, and the {what} of rank {', '.join(map(str, others))} of the group differ from "
        f"those of rank {first}; build the loader alike on all of them, and make what the dataset "
        "returns a function of the index"
    )
