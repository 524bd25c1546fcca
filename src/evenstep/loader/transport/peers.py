"""Who the ranks are: the process and host of each, and what the operating system says of it.

And which of its process's loaders a rank connects. Those that look alike could be joined crosswise,
and share samples of two datasets as if they were one's.

Context-parallel peers prepare the same samples and share every micro-batch of them. C neighbours in
a loader's process group are peers: process n is context-parallel rank n mod C of data-parallel rank
n div C. Every peer prepares and plans what its data-parallel rank trains on, and cuts its own shard
out of it. Plans and messages agree where samples are a function of the index. That is checked:
peers send the same messages, with a checksum of their samples, and a message that differs is an
error on all ranks before any batch of that round is delivered.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, MismatchError, PeerError
from evenstep.processes import is_stopped
from evenstep.protocol.wire import abort_message, is_abort

CARD = 512
"""Bytes in which a rank introduces itself."""


_made: Counter[tuple[int, str]] = Counter()  # by process and group: loaders so far


class LoaderNumber:
    """The place of a loader among all that this process makes over a group."""

    def __init__(self, group: Any) -> None:
        """
        Args:
            group: as the loader has it.
        """
        self._key = os.getpid(), str(getattr(group, "group_name", group))
        _made[self._key] += 1
        self._place = _made[self._key]

    def now(self) -> tuple[int, int]:
        """Its place, and how many there are by now."""
        return self._place, _made[self._key]


class Door(NamedTuple):
    """Where a rank can be reached while lifelines are made."""

    addresses: tuple[str, ...] = ()
    port: int = 0
    token: str = ""
    """Known to the ranks only."""


class Peer(NamedTuple):
    """The process of one rank."""

    host: str
    pid: int
    loader: tuple[int, int] = (1, 1)
    """Which of its loaders it connects, and how many it has made."""
    door: Door = Door()

    @classmethod
    def here(cls, loader: tuple[int, int] = (1, 1), door: Door | None = None) -> Peer:
        return cls(socket.gethostname(), os.getpid(), loader, door or Door())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def stopped(self) -> bool:
        """Whether it is known to be stopped, by SIGSTOP or a debugger: a process of this host, on
        Linux."""
        return self.host == socket.gethostname() and is_stopped(self.pid)

    def card(self) -> bytes:
        """JSON, since what comes from a network is not unpickled; filled up with spaces."""
        return json.dumps(self._replace(host=self.host[:64])).encode().ljust(CARD)

    @classmethod
    def read(cls, rank: int, card: bytes) -> Peer:
        """
        Args:
            rank: whose card it is.

        Raises:
            PeerError: it is damaged, or of another version.
        """
        try:
            host, pid, (place, made), (addresses, port, token) = json.loads(card)
            peer = cls(host, pid, (place, made), Door(tuple(addresses), port, token))
        except (ValueError, TypeError, RecursionError):
            peer = None
        numbers = (peer.pid, *peer.loader, peer.door.port) if peer is not None else ()
        words = (peer.host, peer.door.token, *peer.door.addresses) if peer is not None else ()
        if peer is None or {str} != set(map(type, words)) or {int} != set(map(type, numbers)):
            raise PeerError(
                f"rank {rank} introduced itself with {card[:80]!r}, which names no process and "
                "host; install the same version of evenstep on every rank"
            )
        return peer


def check_same_loader(peers: Sequence[Peer]) -> None:
    """
    Raises:
        MismatchError: ranks that have made equally many loaders connect different ones.
    """
    first, made = peers[0].loader
    for rank, (place, count) in enumerate(peer.loader for peer in peers):
        if count == made and place != first:
            raise MismatchError(
                f"rank {rank} begins its first pass over loader {place} of the {made} that it has "
                f"made, and rank 0 over loader {first}; make loaders, and begin their first "
                'passes, in the same order on all ranks, or pass group="local" to those of one rank'
            )


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
