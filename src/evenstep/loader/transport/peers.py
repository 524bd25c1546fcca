"""Who the ranks are: the process and host of each, and what the operating system says of it.

And which of its process's loaders a rank connects. Those that look alike could be joined crosswise,
and share samples of two datasets as if they were one's.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from evenstep.errors import MismatchError, PeerError

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


class Peer(NamedTuple):
    """The process of one rank."""

    host: str
    pid: int
    loader: tuple[int, int] = (1, 1)
    """Which of its loaders it connects, and how many it has made."""

    @classmethod
    def here(cls, loader: tuple[int, int] = (1, 1)) -> Peer:
        return cls(socket.gethostname(), os.getpid(), loader)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def dead(self) -> bool:
        """Whether it is known to be gone, which it is of a process of this host."""
        return self._condition() in ("gone", "Z", "X")

    @property
    def stopped(self) -> bool:
        """Whether it is known to be stopped, by SIGSTOP or a debugger."""
        return self._condition() in ("T", "t")

    def _condition(self) -> str:
        """The letter that Linux has for a process, or "gone"; empty where it is not known, as of a
        process of another host."""
        if self.host != socket.gethostname():
            return ""
        if not os.path.exists("/proc/self/stat"):
            return "" if _exists(self.pid) else "gone"
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0].decode()
        except OSError:
            return "gone"

    def card(self) -> bytes:
        """JSON, since what comes from a network is not unpickled; filled up with spaces."""
        fields = {"host": self.host[:64], "pid": self.pid, "loader": self.loader}
        return json.dumps(fields).encode().ljust(CARD)

    @classmethod
    def read(cls, rank: int, card: bytes) -> Peer:
        """
        Args:
            rank: whose card it is.

        Raises:
            PeerError: it is damaged, or of another version.
        """
        try:
            fields = json.loads(card)
            place, made = fields["loader"]
            peer = cls(fields["host"], fields["pid"], (place, made))
        except (ValueError, TypeError, KeyError, RecursionError):
            peer = None
        numbers = (peer.pid, *peer.loader) if peer is not None else ()
        if peer is None or not isinstance(peer.host, str) or {int} != set(map(type, numbers)):
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


def _exists(pid: int) -> bool:
    """False only for a process that is known to be gone."""
    if sys.platform == "win32":  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        pass
    return True
