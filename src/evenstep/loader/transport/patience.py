"""Logs which ranks a trainer waits for, once it has waited long for its next batch.

Slowness is not a fault, so no wait has a time limit. The ticks of the other ranks say what they do.
A rank that sends no tick is stopped, has not started the pass, or has lost its host.

`Presence` tells which ranks take no part in a collective that does not end: Gloo does not say. Only
a rank that has been in one for a while notes this, in the store by which the process group was
formed, and deletes the note when the collective ends. So as long as all answer, nothing is stored.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.peers import Peer
from evenstep.loader.transport.session import WAITING, Doing, Tick

_ANSWER_SECONDS = 2.0  # for the store, which ends with the process that keeps it, or stops with it
_SLICES = 8  # of that time, of which one is lost if this process itself was stopped

_made: collections.Counter[str] = collections.Counter()


class Presence:
    """This rank's notes, and those of others. One thread at a time waits for answers."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, size: int) -> None:
        """
        Args:
            group: all ranks; the default group when None. They make these objects in the same
                order.
            rank, size: in the group.
        """
        self._given = group
        # Not kept: the trainer may destroy the default group and make another.
        name = str(_or_default(group).group_name)
        self._prefix = f"evenstep/{_made[name]}"
        _made[name] += 1
        self._rank = rank
        self._size = size
        self._store: Any = None
        self._silent = False
        self._noted: int | None = None

    def note(self, collective: int | None) -> None:
        """Notes in which collective this rank is, by its number; None if it is in none."""
        if collective != self._noted:
            before, self._noted = self._noted, collective
            self._ask(lambda store: self._move(store, before, collective))

    def _move(self, store: Any, before: int | None, now: int | None) -> None:
        # A rank may have ended one, and started the next, of which others lack a part yet.
        for number in range(before - 1, before + 2) if before is not None else ():
            store.delete_key(f"{number}/{self._rank}")
        for number in range(now - 1, now + 2) if now is not None else ():
            store.set(f"{number}/{self._rank}", "here")

    def absent(self, collective: int) -> list[int] | None:
        """Ranks that are not in a collective, nor in the one before or after; None if the store
        does not answer."""

        def find(store: Any, ranks: Sequence[int]) -> list[int]:
            # Few are absent as a rule, so halving finds them in few requests.
            if not ranks or store.check([f"{collective}/{rank}" for rank in ranks]):
                return []
            if len(ranks) == 1:
                return list(ranks)
            half = len(ranks) // 2
            return find(store, ranks[:half]) + find(store, ranks[half:])

        found: list[int] | None = self._ask(lambda store: find(store, range(self._size)))
        return found

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """The store's answer; None if it does not come in time, and then for all later
        questions."""
        if self._silent:
            return None
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        GuardedThread(
            lambda: answers.put(question(self._connected())),
            name="store",
            failed=lambda _: answers.put(None),
        ).start()
        for _ in range(_SLICES):
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=_ANSWER_SECONDS / _SLICES)
        self._silent = True
        return None

    def _connected(self) -> Any:
        """The store, through a connection of its own: the trainer's may be waiting for a key."""
        if self._store is None:
            torch_distributed: Any = dist
            store = group_store(self._given)
            # Copies of a file's store count as ranks that leave: it would be deleted too early.
            if not isinstance(innermost_store(store), torch_distributed.FileStore):
                store = getattr(store, "clone", lambda: store)()
            self._store = torch_distributed.PrefixStore(self._prefix, store)
        return self._store


def group_store(group: Any) -> Any:
    """The store by which a process group was formed."""
    return _or_default(group).get_group_store()


def innermost_store(store: Any) -> Any:
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store


def _or_default(group: Any) -> Any:
    return group or dist.group.WORLD


logger = logging.getLogger("evenstep")

_NAMED = 8  # ranks in a line

# A tick takes at most half a second. A collective that takes longer than the first misses a rank,
# and all that take part have noted it once it takes longer than the second.
_STALL, _NOTED = 1.0, 1.5  # seconds

CONNECT = 0
"""In place of a collective's number: those that connect the ranks, at their first pass."""


class _Trainer(NamedTuple):
    doing: Doing
    step: int
    since: float


class Patience:
    """What this rank's trainer does and for how long, for its own log and the ticks of others.

    The trainer and the exchange thread write, each its own attributes; a thread looks four
    times a second.
    """

    def __init__(
        self, warn_after: float | None, rank: int = 0, presence: Presence | None = None
    ) -> None:
        """
        Args:
            warn_after: seconds that the trainer waits before a line is logged; the next follow
                after twice, four times and so on as long. None or 0 logs nothing.
            rank: of this process in the loader's group.
            presence: None where there are no other ranks.
        """
        self._warn_after = warn_after or 0.0
        self._interval = min(_STALL / 4, self._warn_after / 4)
        self._rank = rank
        self._presence = presence
        self.peers: Sequence[Peer] = ()
        """The processes of all ranks, once they are known."""
        self.beside: Sequence[str] = ()
        """Threads beside which this rank's workers were forked."""
        self.ticks: Sequence[Tick] = ()
        """The latest of all ranks; none before the first of a pass."""
        self._trainer = _Trainer(Doing.HAS_LEFT, -1, time.monotonic())
        self._gathering: tuple[int, float] | None = None  # the collective under way, since when
        self._warned = (0.0, 0.0)  # the wait that was logged last: its begin, and after how long
        self._closed = threading.Event()
        self._thread = GuardedThread(self._watch, name="patience")
        if self._warn_after:
            self._thread.start()

    def trainer(self, doing: Doing, step: int | None = None) -> None:
        """Notes what the trainer does from now on.

        Args:
            step: that it has taken; None for no other than before.
        """
        self._trainer = _Trainer(
            doing, self._trainer.step if step is None else step, time.monotonic()
        )

    def doing(self) -> tuple[Doing, int, int]:
        """What the trainer does, its last step, and for how many seconds it has done so."""
        doing, step, since = self._trainer
        return doing, step, int(time.monotonic() - since)

    @contextlib.contextmanager
    def gathering(self, collective: int) -> Iterator[None]:
        """While this rank is in a collective, which has the same number on all ranks."""
        self._gathering = collective, time.monotonic()
        try:
            yield
        finally:
            self._gathering = None

    def close(self) -> None:
        self._closed.set()
        if self._warn_after:
            self._thread.join(1.0)  # it may be waiting for the store

    # In the thread

    def _watch(self) -> None:
        while not self._closed.wait(self._interval):
            gathering, now = self._gathering, time.monotonic()
            stalls = gathering is not None and now - gathering[1] >= _STALL
            if self._presence is not None:
                self._presence.note(gathering[0] if gathering is not None and stalls else None)
            trainer = self._trainer
            waited = now - trainer.since
            begin, after = self._warned
            due = 2 * after if begin == trainer.since else self._warn_after
            if trainer.doing != Doing.WAITS or waited < due:
                continue
            if gathering is not None and stalls:
                cause = self._not_answering(*gathering)
            else:
                cause = self._not_ready()
            # The question may have taken a while, in which the wait may have ended.
            if cause and self._trainer is trainer and (not stalls or self._gathering is gathering):
                self._warned = trainer.since, due
                logger.warning("rank %d has waited %.0f s for %s", self._rank, waited, cause)

    def _not_answering(self, collective: int, since: float) -> str:
        if time.monotonic() - since < _NOTED:
            return ""
        seconds = f"for {time.monotonic() - since:.0f} s"
        absent = self._presence.absent(collective) if self._presence is not None else None
        absent = absent or [rank for rank, peer in enumerate(self.peers) if peer.stopped]
        if not absent:
            return f"a rank that has not answered {seconds}; which one is not known"
        if collective == CONNECT:
            ranks = _listed([f"rank {rank}" for rank in absent])
            return f"ranks to begin their first pass over this loader: {ranks}"
        return _listed([self._missing(rank, seconds) for rank in absent])

    def _missing(self, rank: int, seconds: str) -> str:
        if self.peers[rank].stopped:
            why = "is stopped (SIGSTOP or a debugger)"
        elif self.ticks:
            why = "is stopped or hangs, or its host or network is gone"
        else:
            why = "has not started this pass, or is stopped"
        return f"rank {rank} ({self.peers[rank]}), which has not answered {seconds} and {why}"

    def _not_ready(self) -> str:
        late = [rank for rank, tick in enumerate(self.ticks) if tick.state == WAITING]
        if not self.ticks and self._gathering is not None:
            return ""  # of others nothing is known yet
        if not self.ticks or self._rank in late:
            return "its own dataset, sampler or collate_fn" + self._of_a_fork()
        return _listed([f"rank {rank} ({self.peers[rank]}), {self._says(rank)}" for rank in late])

    def _of_a_fork(self) -> str:
        if not self.beside:
            return ""
        return (
            f". Its workers were forked beside threads ({', '.join(self.beside)}): one that needs "
            "a lock that such a thread held waits for ever; "
            'multiprocessing_context="forkserver" starts workers without'
        )

    def _says(self, rank: int) -> str:
        tick = self.ticks[rank]
        if tick.doing == Doing.WAITS:
            return f"which has waited {tick.seconds} s for its dataset, sampler or collate_fn"
        if tick.step < 0:
            return f"which has started the pass and not asked for a batch for {tick.seconds} s"
        return f"which has been busy with step {tick.step} for {tick.seconds} s"


def _listed(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return "; ".join([*texts[:_NAMED], *more])
