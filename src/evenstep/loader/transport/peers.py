"""Who the ranks are: the process and host of each, and what the operating system says of it."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import NamedTuple

from evenstep.errors import PeerError

CARD = 512
"""Bytes in which a rank introduces itself."""


class Peer(NamedTuple):
    """The process of one rank."""

    host: str
    pid: int

    @classmethod
    def here(cls) -> Peer:
        return cls(socket.gethostname(), os.getpid())

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
        return json.dumps({"host": self.host[:64], "pid": self.pid}).encode().ljust(CARD)

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
            peer = cls(fields["host"], fields["pid"])
        except (ValueError, TypeError, KeyError, RecursionError):
            peer = None
        if peer is None or not isinstance(peer.host, str) or type(peer.pid) is not int:
            raise PeerError(
                f"rank {rank} introduced itself with {card[:80]!r}, which names no process and "
                "host; install the same version of evenstep on every rank"
            )
        return peer


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
