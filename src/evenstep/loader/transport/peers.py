"""Who the ranks are: the process and host of each, and what the operating system says of it.

And which of its process's loaders a rank connects. Those that look alike could be joined crosswise,
and share samples of two datasets as if they were one's.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from evenstep.errors import MismatchError, PeerError
from evenstep.processes import is_stopped

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
