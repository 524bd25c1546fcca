"""The exchange of messages between ranks, by a thread of the trainer process.

No child process touches torch.distributed. The batcher sends its message through a pipe; the thread
gathers everybody's over a Gloo group that nothing else uses, and sends them back.

The thread does not wait in one long collective. While an epoch is under way all ranks *tick* at
least every `TICK` seconds, each saying whether it has a message yet, and a rank that has one ticks
at once. So a rank whose samples are slow, or whose trainer is busy, keeps the others waiting and
informed, with no timeout to outlive; and the end of a process, which closes its connections, is
noticed within a tick.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import re
import socket
import struct
import threading
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import PeerError
from evenstep.loader.transport.cp_peers import GroupPlace
from evenstep.loader.transport.session import Session

TICK = 0.5
"""Seconds between two ticks of a rank that waits for its batcher."""

# A collective is never late, only dead, so its own timeout must not speak first.
_FOREVER = datetime.timedelta(days=365)

# Limit for ranks that have just met to connect to each other.
_CONNECT_LIMIT = datetime.timedelta(minutes=2)

_FRAME = 1024  # bytes of a tick; a longer message takes a second gather
_HEAD = struct.Struct("<BI")  # state, length of the message
_WAITING, _MESSAGE, _DONE = 0, 1, 2


class RankExchange:
    """The exchange thread of one process. It serves one session after the other."""

    place = GroupPlace(0, 1)

    def __init__(self) -> None:
        self.failure: PeerError | None = None
        """Why no session can be served any more: set once, read by the trainer."""
        self._latest: weakref.ref[Session] | None = None
        self._sessions: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenstep-exchange", daemon=True)
        self._thread.start()

    def begin(self, session: Session) -> None:
        """Serves `session` as soon as those before it are over on all ranks."""
        self._latest = weakref.ref(session)
        self._sessions.put(session)

    def close(self, timeout: float = 5.0) -> None:
        """Ends the thread, after the sessions that were begun."""
        latest = self._latest and self._latest()
        # A loader and its pass that are collected together may be finalized in either order.
        if latest and not latest.left.is_set():
            latest.leave()
        self._sessions.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while (session := self._sessions.get()) is not None:
            try:
                if self.failure is None:
                    self._serve(session)
            except Exception as error:
                self.failure = self._explain(error)
            finally:
                session.over.set()
                del session  # it refers to the batcher, whose memory this thread must not keep
        self._release()

    def _serve(self, session: Session) -> None:
        raise NotImplementedError

    def _explain(self, error: Exception) -> PeerError:
        return PeerError(f"the exchange between ranks failed: {error}")

    def _release(self) -> None:
        pass


class LocalExchange(RankExchange):
    """The exchange of one rank alone: its own message comes back."""

    def _serve(self, session: Session) -> None:
        while True:
            message = session.message(TICK)
            if message == b"":
                return
            if message is not None:
                session.reply([message])


class GlooExchange(RankExchange):
    """The exchange of all ranks of a process group."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, context_parallel: int = 1
    ) -> None:
        """
        Args:
            group: all ranks that train on the loader's steps; the default group when None. They
                must make their exchanges in the same order, as with any collective.
            context_parallel: ranks that share every micro-batch; see `GroupPlace`.

        Raises:
            PeerError: a rank died meanwhile.
        """
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.place = GroupPlace(dist.get_rank(group), len(ranks), context_parallel)
        # torch names a group of all ranks by a counter. One of some ranks, who make it without the
        # others, it names by how many groups exist: so while more may be made, none of these may be
        # destroyed.
        self._keep = self.place.size < dist.get_world_size()
        lasting = hasattr(dist.ProcessGroup, "set_timeout")  # newer torch
        here: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
        self._peers: list[Any] = [None] * self.place.size
        limit = None if lasting else _FOREVER
        try:
            if dist.get_backend(group) == "gloo":
                # Fails at once if a rank is missing; `new_group` would wait for its timeout.
                dist.barrier(group)
                limit = _CONNECT_LIMIT if lasting else limit
            self._group: Any = dist.new_group(
                ranks, timeout=limit, backend="gloo", use_local_synchronization=self._keep
            )
            dist.all_gather_object(self._peers, here, group=self._group)
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.place.number} could not connect to the other ranks, one of which has "
                f"died or does not use this loader ({_brief(error)})"
            ) from error
        if lasting:  # so far there was a time limit, for a rank that never connects
            self._group.set_timeout(_FOREVER)
        super().__init__()

    def _serve(self, session: Session) -> None:
        message: bytes | None = None
        while True:
            if message is None:
                message = session.message(TICK)
            state = _WAITING if message is None else _MESSAGE if message else _DONE
            states, messages = self._tick(state, message or b"")
            if _WAITING not in states:
                messages = self.place.fold(messages)
            if all(s == _DONE for s in states):
                return
            if _WAITING in states:
                continue
            if state == _MESSAGE:
                session.reply(messages)
                message = None
            else:
                # This rank is done: its empty message says so to the others, in case they expected
                # more, and it ticks on until they are done too.
                session.note(messages)

    def _tick(self, state: int, message: bytes) -> tuple[list[int], list[bytes]]:
        frame = _HEAD.pack(state, len(message)) + message
        gathered = self._gather(frame[:_FRAME].ljust(_FRAME, b"\0"))
        heads = [_HEAD.unpack_from(data) for data in gathered]
        states = [head[0] for head in heads]
        longest = max(head[1] for head in heads)
        messages = [data[_HEAD.size :] for data in gathered]
        if _WAITING not in states and longest + _HEAD.size > _FRAME:
            # Every rank sees the same heads, so all take part or none does.
            rest = self._gather(frame[_FRAME:].ljust(longest + _HEAD.size - _FRAME, b"\0"))
            messages = [first + second for first, second in zip(messages, rest)]
        return states, [data[: head[1]] for data, head in zip(messages, heads)]

    def _gather(self, data: bytes) -> list[bytes]:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        out = [torch.empty_like(tensor) for _ in range(self.place.size)]
        dist.all_gather(out, tensor, group=self._group)
        return [t.numpy().tobytes() for t in out]

    def _explain(self, error: Exception) -> PeerError:
        # Closing this rank's connections lets ranks notice that were not connected to the one that
        # died.
        self._keep = False
        self._release()
        time.sleep(0.1)  # a killed process needs a moment to become a zombie
        dead = [
            f"rank {rank} (process {peer['pid']} on {peer['host']})"
            for rank, peer in enumerate(self._peers)
            if peer["host"] == socket.gethostname() and not _alive(peer["pid"])
        ]
        cause = ", ".join(dead) + " died" if dead else "a rank on another host died or failed"
        return PeerError(
            f"{cause}, so rank {self.place.number} can make no further step ({_brief(error)})"
        )

    def _release(self) -> None:
        group, self._group = self._group, None
        if group is not None and not self._keep and dist.is_initialized():
            # The user may have destroyed all groups already.
            with contextlib.suppress(ValueError, RuntimeError, AssertionError):
                dist.destroy_process_group(group)


def _brief(error: Exception) -> str:
    """Gloo's message without the line of Gloo's source and without general advice."""
    return re.sub(r"^\[\S*\] ", "", str(error).splitlines()[0]).partition(". This is ")[0]


def _alive(pid: int) -> bool:
    """Whether a process of this host exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def place_in_group(group: Any, context_parallel: int) -> GroupPlace:
    """Where this process stands in a loader's `group`, found without a message to other ranks."""
    if _alone(group):
        return GroupPlace(0, 1, context_parallel)
    return GroupPlace(dist.get_rank(group), dist.get_world_size(group), context_parallel)


def make_exchange(group: Any, context_parallel: int) -> RankExchange:
    """The exchange of a loader's `group`. All its ranks must call this.

    Raises:
        PeerError: a rank died meanwhile.
    """
    if _alone(group):
        return LocalExchange()
    return GlooExchange(group, context_parallel=context_parallel)


def _alone(group: Any) -> bool:
    """Whether a loader over `group` feeds this process only."""
    distributed = dist.is_available() and dist.is_initialized()
    return group == "local" or (group is None and not distributed)
