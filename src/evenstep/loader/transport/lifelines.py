"""`Lifelines`: connections between ranks over which only news of lost ranks is sent.

Gloo now and then misses that a connection was closed, and of a host that loses power it learns
nothing: its collectives then wait for ever. The system closes a lifeline when its process ends, and
when its host has not answered for a while, however busy or stopped the process may be. A rank that
loses another one tells those that it has lifelines with, and they tell theirs.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing.connection
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

DIED = "died"
SILENT = "does not answer any more: its host has lost power or its network"
LEFT = "closed the loader or failed"
"""How a rank may be lost, as errors say it."""

GRACE = 2.0
"""Seconds for which a collective may go on after a rank is lost: what it has sent still arrives."""

_LOOK = datetime.timedelta(seconds=0.25)  # between two looks during a collective
_NEWS_SECONDS = 2.0  # until a loss that Gloo has noticed is known here
_TOLD = 8  # losses that a rank passes on

_BY_CODE = {b"died": DIED, b"silent": SILENT, b"left": LEFT}
_CODES = {how: code for code, how in _BY_CODE.items()}

_open: weakref.WeakSet[Lifelines] = weakref.WeakSet()


class RankLostError(RuntimeError):
    """A collective cannot end."""


class Lifelines:
    """This rank's lifelines. Used by one thread."""

    def __init__(self, rank: int, lines: dict[int, Connection] | None = None) -> None:
        """
        Args:
            rank: of this process.
            lines: by rank; see `lifeline_sockets`. None before the ranks have met.
        """
        self._rank = rank
        self._lines = dict(lines or {})
        self._informed: set[int] = set()  # ranks that have told why their lifeline will end
        self._losses: dict[int, str] = {}
        self._first_loss = 0.0
        _open.add(self)

    def losses(self) -> dict[int, str]:
        """Ranks that are lost, and how, once a collective has failed; waits for news of them."""
        deadline = time.monotonic() + _NEWS_SECONDS
        while not self._losses and self._lines and (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        self._listen(0)
        # Ranks may have left because another one died.
        died = {rank: how for rank, how in self._losses.items() if how != LEFT}
        return died or self._losses

    def check(self, work: Any, group: Any) -> None:
        """Called every now and then while a collective is under way.

        Args:
            work: the collective, `torch.distributed.Work`.
            group: its process group.

        Raises:
            RankLostError: a rank has been lost for `GRACE` seconds, so it may never end.
        """
        self._listen(0)
        if self._losses and time.monotonic() > self._first_loss + GRACE:
            _keep_for_ever(work, group)
            raise RankLostError("a rank is lost, and the collective did not end")

    def wait(self, work: Any, group: Any) -> None:
        """Waits for a collective of Gloo.

        Raises:
            RankLostError: see `check`.
            RuntimeError: it has failed.
        """
        while not work.is_completed():
            with contextlib.suppress(RuntimeError):  # it is not done yet, or has failed
                work.wait(_LOOK)
            if not work.is_completed():
                self.check(work, group)
        work.wait()

    def close(self) -> None:
        """Ends the lifelines. The others learn of the losses that are known here, or else that this
        rank leaves."""
        try:
            for rank, how in (self._losses or {self._rank: LEFT}).items():
                self._tell(rank, how)
        finally:
            self.release()

    def release(self) -> None:
        """Closes this process's ends."""
        for line in self._lines.values():
            line.close()
        self._lines = {}

    def _listen(self, seconds: float) -> None:
        """Reads what has arrived, or the first that arrives within `seconds`."""
        while self._lines and (ready := _readable(self._lines.values(), seconds)):
            for rank, line in list(self._lines.items()):
                if line in ready:
                    self._read(rank, line)
            seconds = 0

    def _read(self, rank: int, line: Connection) -> None:
        try:
            code, _, number = line.recv_bytes().partition(b" ")
            how, lost = _BY_CODE[code], int(number)
        except (EOFError, OSError, KeyError, ValueError) as error:
            del self._lines[rank]
            line.close()
            timed_out = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            how, lost = SILENT if timed_out else DIED, rank
            if rank in self._informed:
                if self._losses:
                    return
                how = LEFT  # as it takes this rank for lost
        self._informed.add(rank)
        if lost == self._rank or lost in self._losses:
            return
        if not self._losses:
            self._first_loss = time.monotonic()
        self._losses[lost] = how
        # A rank that leaves at the end of training is missed by nobody.
        if how != LEFT and len(self._losses) <= _TOLD:
            self._tell(lost, how)

    def _tell(self, rank: int, how: str) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.send_bytes(b"%s %d" % (_CODES[how], rank))


def named(losses: dict[int, str], peers: Sequence[object] = ()) -> str:
    """For an error; empty if there are none.

    Args:
        losses: see `Lifelines.losses`.
        peers: [ranks] who they are, where that is known.
    """
    who = {rank: f"rank {rank}" + (f" ({peers[rank]})" if peers else "") for rank in losses}
    return ", ".join(f"{who[rank]} {how}" for rank, how in losses.items())


def _readable(lines: Iterable[Connection], seconds: float) -> list[Any]:
    return multiprocessing.connection.wait(list(lines), seconds)


def _keep_for_ever(*needed: Any) -> None:
    """Keeps a collective that does not end, and its group: both wait for its end when they are
    deleted, and the process could not end. A daemon thread's own variables are never deleted."""
    threading.Thread(target=_wait, args=needed, name="evenstep-lost", daemon=True).start()


def _wait(work: Any, group: Any) -> None:
    with contextlib.suppress(RuntimeError):
        work.wait()


def _release_in_child() -> None:
    for lines in list(_open):
        lines.release()


# A child that inherits a lifeline would keep it open when this process is killed.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
