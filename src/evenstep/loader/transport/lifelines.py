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
from typing import Any, NamedTuple

DIED, SILENT, RESET, LEFT = "died", "silent", "reset", "left"
"""How a rank may be lost."""

_TEXTS = {
    DIED: " died",
    SILENT: " stopped answering{whom}: {host} has lost power or its network",
    RESET: " reset a connection{to}: it has died, or its network is broken",
    LEFT: " closed the loader or failed",
}

GRACE = 2.0
"""Seconds for which a collective may go on after a rank is lost: what it has sent still arrives."""

_LOOK = datetime.timedelta(seconds=0.25)  # between two looks during a collective
_NEWS_SECONDS = 2.0  # until a loss that Gloo has noticed is known here
_TOLD = 8  # losses that a rank passes on

_open: weakref.WeakSet[Lifelines] = weakref.WeakSet()


class RankLostError(RuntimeError):
    """A collective cannot end."""


class Loss(NamedTuple):
    """How a rank is lost."""

    how: str
    by: int
    """The rank that has noticed it. Where a network is cut, others may hear the lost rank."""


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
        self._ends: dict[int, str] = {}  # how lifelines ended, where this was seen in writing
        self._losses: dict[int, Loss] = {}
        self._first_loss = 0.0
        _open.add(self)

    def losses(self) -> dict[int, Loss]:
        """Ranks that are lost, once a collective has failed; waits for news of them. If several
        are, those that are the cause, as far as it is known here."""
        deadline = time.monotonic() + _NEWS_SECONDS
        while not self._losses and self._lines and (left := deadline - time.monotonic()) > 0:
            self._listen(left)
        self._listen(0)
        # Ranks may have left because another one is lost, and tell whom they do not hear in turn.
        first = min(self._losses.values(), key=self._doubt, default=None)
        if first is None or self._doubt(first) == 0:
            return {rank: loss for rank, loss in self._losses.items() if not self._doubt(loss)}
        return {rank: loss for rank, loss in self._losses.items() if loss == first}

    def _doubt(self, loss: Loss) -> int:
        """Whether it is the cause of others: surely if 0."""
        if loss.how == DIED or (loss.how == SILENT and loss.by == self._rank):
            return 0
        return 2 if loss.how == LEFT else 1

    def cause(self, peers: Sequence[object] = ()) -> str:
        """`losses`, for an error; empty if there are none.

        Args:
            peers: [ranks] who they are, where that is known.
        """
        return _named(self.losses(), self._rank, peers)

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
            for rank, loss in (self._losses or {self._rank: Loss(LEFT, self._rank)}).items():
                self._tell(rank, loss)
        finally:
            self.release()

    def release(self) -> None:
        """Closes this process's ends."""
        for line in self._lines.values():
            line.close()
        self._lines = {}

    def _listen(self, seconds: float) -> None:
        """Reads what has arrived, or the first that arrives within `seconds`."""
        while self._lines and (
            ready := multiprocessing.connection.wait(list(self._lines.values()), seconds)
        ):
            for rank, line in list(self._lines.items()):
                if line in ready:
                    self._read(rank, line)
            seconds = 0

    def _read(self, rank: int, line: Connection) -> None:
        try:
            how, lost, by = line.recv_bytes().decode().split()
            number, loss = int(lost), Loss(how, int(by))
            if how not in _TEXTS:
                raise ValueError(how)
        except (EOFError, OSError, ValueError) as error:
            del self._lines[rank]
            line.close()
            how = self._ends.get(rank) or _how(error)
            number, loss = rank, Loss(how, self._rank)
            if rank in self._informed and how != SILENT:
                if self._losses:
                    return
                loss = loss._replace(how=LEFT)  # as it takes this rank for lost
        self._informed.add(rank)
        self._note(number, loss)

    def _note(self, rank: int, loss: Loss) -> None:
        """Notes a loss, and tells the others of it."""
        known = self._losses.get(rank)
        if known is not None and (loss.by != self._rank or known.by == self._rank):
            return
        if rank == self._rank and loss.how != SILENT:
            return
        if not self._losses:
            self._first_loss = time.monotonic()
        self._losses[rank] = loss
        # A rank that leaves at the end of training is missed by nobody.
        if known is None and loss.how != LEFT and len(self._losses) <= _TOLD:
            self._tell(rank, loss)

    def _tell(self, rank: int, loss: Loss) -> None:
        for other, line in self._lines.items():
            try:
                line.send_bytes(f"{loss.how} {rank} {loss.by}".encode())
            except OSError as error:
                if _how(error) != DIED:  # the system says it once
                    self._ends[other] = _how(error)


def _named(losses: dict[int, Loss], rank: int, peers: Sequence[object]) -> str:
    def who(ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {each}" + (f" ({peers[each]})" if peers else "") for each in ranks)

    alike: dict[str, list[int]] = {}
    for lost, (how, by) in losses.items():
        there = by != rank
        text = _TEXTS[how].format(
            whom=f" {who([by])}" if there else "",
            to=f" to {who([by])}" if there else "",
            host="one of their hosts" if there else "the host",
        )
        alike.setdefault(text, []).append(lost)
    return ", ".join(who(ranks) + text for text, ranks in alike.items())


def _how(error: Exception) -> str:
    """How a rank is lost, as a lifeline to it has ended."""
    if isinstance(error, ConnectionResetError):  # which the system of a deaf host sends, too
        return RESET
    return SILENT if isinstance(error, OSError) and not isinstance(error, ConnectionError) else DIED


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
