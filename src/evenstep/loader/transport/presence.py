"""Which ranks take no part in a collective that does not end: Gloo does not say.

Only a rank that has been in one for a while notes this, in the store by which the process group was
formed, and deletes the note when the collective ends. So as long as all answer, nothing is stored.
"""

from __future__ import annotations

import collections
import contextlib
import queue
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from evenstep.loader.threads import GuardedThread

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
        answers = self._put(question)
        for _ in range(_SLICES):
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=_ANSWER_SECONDS / _SLICES)
        self._silent = True
        return None

    def _put(self, question: Callable[[Any], Any]) -> queue.SimpleQueue[Any]:
        """Asks, and returns where the answer will be; None if the store fails."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        GuardedThread(
            lambda: answers.put(question(self._connected())),
            name="store",
            failed=lambda _: answers.put(None),
        ).start()
        return answers

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
