"""The exchange of messages between ranks, by a thread of the trainer process.

No child process touches torch.distributed. The batcher sends its message through a pipe. The thread
gathers the messages of all ranks over a Gloo group of its own, and sends them back.

The thread does not wait in one long collective. While an epoch is under way all ranks *tick* at
least every `TICK` seconds, each saying whether it has a message yet and what its trainer does, and
a rank that has one ticks at once. So a rank whose samples are slow, or whose trainer is busy, keeps
the others waiting and informed, with no timeout to outlive. The end of a process or host is noticed
by its lifelines, or sooner by Gloo.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import re
import weakref
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import LoaderDiedError, PeerError, described
from evenstep.loader.options import Faults
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.lifeline_sockets import Meeting, partners_of
from evenstep.loader.transport.lifelines import Lifelines
from evenstep.loader.transport.patience import CONNECT, Patience, Presence
from evenstep.loader.transport.peers import GroupPlace, Peer, check_same_loader
from evenstep.loader.transport.session import (
    DONE,
    FRAME,
    HEAD,
    LONGEST,
    MESSAGE,
    WAITING,
    Doing,
    Session,
    Tick,
    decode_ticks,
    encode_tick,
)
from evenstep.protocol.wire import abort_message

TICK = 0.5
"""Seconds between two ticks of a rank that waits for its batcher."""

_ON_HOST = ("gloo", "mpi", "undefined")  # backends that take CPU tensors

# A collective is never late, only dead, so its own timeout must not speak first.
_FOREVER = datetime.timedelta(days=365)

# Limit for ranks that have just met to connect to each other.
_CONNECT_LIMIT = datetime.timedelta(minutes=2)


class RankExchange:
    """The exchange thread of one process. It serves one session after the other."""

    place = GroupPlace(0, 1)

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience or Patience(None)
        """Learns what the trainer does; what it logs is about this exchange."""
        self.failure: PeerError | None = None
        """Why no session can be served any more: set once, read by the trainer."""
        self._latest: weakref.ref[Session] | None = None
        self._sessions: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        self._thread = GuardedThread(self._run, name="exchange")
        try:
            self._thread.start()
        except LoaderDiedError:
            self.patience.close()  # nobody else can
            raise

    def begin(self, session: Session) -> None:
        """Serves `session` as soon as those before it are over on all ranks."""
        self._latest = weakref.ref(session)
        self._sessions.put(session)

    def close(self, timeout: float = 5.0) -> None:
        """Ends the thread, after the sessions that were started."""
        latest = self._latest and self._latest()
        # A loader and its pass that are collected together may be finalized in either order.
        if latest and not latest.left.is_set():
            latest.leave()
        self._sessions.put(None)
        self._thread.join(timeout)
        self.patience.close()

    def _run(self) -> None:
        while (session := self._sessions.get()) is not None:
            try:
                if self.failure is None:
                    self._serve(session)
            except BaseException as error:
                self.failure = self._cause(error)
            finally:
                session.end()
                del session  # it refers to the batcher, whose memory this thread must not keep
        self._release()

    def _serve(self, session: Session) -> None:
        raise NotImplementedError

    def _cause(self, error: BaseException) -> PeerError:
        try:
            return self._explain(error)
        except BaseException:  # memory has run out, say
            return PeerError(f"the exchange between ranks failed: {described(error)}")

    def _explain(self, error: BaseException) -> PeerError:
        return PeerError(f"the exchange between ranks failed: {described(error)}")

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
        self,
        group: dist.ProcessGroup | None = None,
        *,
        context_parallel: int = 1,
        faults: Faults | None = None,
        loader: tuple[int, int] = (1, 1),
    ) -> None:
        """
        Args:
            group: all ranks that train on the loader's steps; the default group when None. They
                must make their exchanges in the same order, as with any collective.
            context_parallel: ranks that share every micro-batch; see `GroupPlace`.
            faults: what it does about slow and lost ranks.
            loader: see `Peer`.

        Raises:
            PeerError: a rank died meanwhile.
            MismatchError: ranks connect different loaders.
        """
        faults = faults or Faults()
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.place = GroupPlace(dist.get_rank(group), len(ranks), context_parallel)
        # torch names a group of all ranks by a counter. One of some ranks, who make it without the
        # others, it names by how many groups exist: so while more may be made, none of these may be
        # destroyed.
        self._keep = self.place.size < dist.get_world_size()
        self._group: Any = None
        self._ticks = 0
        self._presence = Presence(group, self.place.number, self.place.size)
        self._lifelines = Lifelines(self.place.number)
        self._met: set[int] = set()
        """Ranks that this one has had lifelines with."""
        patience = Patience(faults.warn_after, self.place.number, self._presence)
        patience.trainer(Doing.WAITS)
        try:
            with patience.gathering(CONNECT):
                patience.peers = self._connect(group, ranks, loader, faults.peer_timeout)
            patience.trainer(Doing.HAS_LEFT)
            super().__init__(patience)
        except BaseException:
            patience.close()
            self._release()
            raise

    def _connect(
        self,
        group: dist.ProcessGroup | None,
        ranks: list[int],
        loader: tuple[int, int],
        peer_timeout: float,
    ) -> list[Peer]:
        """Makes the group and lifelines; returns who the ranks are."""
        limit = None
        try:
            if dist.get_backend(group) == "gloo":
                # Fails at once if a rank is missing; `new_group` would wait for its timeout.
                dist.barrier(group)
                limit = _CONNECT_LIMIT
            self._group = dist.new_group(
                ranks, timeout=limit, backend="gloo", use_local_synchronization=self._keep
            )
            meeting = Meeting(group)
            cards = self._gather(Peer.here(loader, meeting.door).card())
            peers = [Peer.read(rank, card) for rank, card in enumerate(cards)]
            check_same_loader(peers)
            lines = meeting.meet(self.place.number, peers, peer_timeout)
            self._met = set(lines)
            self._lifelines = Lifelines(self.place.number, lines)
            self._gather(b"met")  # one that died meanwhile has no lifelines
        except RuntimeError as error:
            cause = self._lifelines.cause() or "one has died or does not use this loader"
            raise PeerError(
                f"rank {self.place.number} could not connect to the other ranks: {cause} "
                f"({brief(error)})"
            ) from error
        # So far there was a time limit, for a rank that never connects.
        self._group.set_timeout(_FOREVER)
        return peers

    def _serve(self, session: Session) -> None:
        message: bytes | None = None
        self.patience.ticks = ()
        while True:
            if message is None:
                message = session.message(TICK)
                if message is not None and len(message) > LONGEST:
                    message = abort_message(
                        f"its message has {len(message):,} bytes, and {LONGEST:,} are allowed"
                    )
            state = WAITING if message is None else MESSAGE if message else DONE
            states, messages = self._tick(state, message or b"")
            if WAITING not in states and not session.of_processes:
                messages = self.place.fold(messages)
            if all(s == DONE for s in states):
                return
            if WAITING in states:
                continue
            if state == MESSAGE:
                session.reply(messages)
                message = None
            else:
                # This rank is done: its empty message says so to the others, in case they expected
                # more, and it ticks on until they are done too.
                session.note(messages)

    def _tick(self, state: int, message: bytes) -> tuple[list[int], list[bytes]]:
        tick = Tick(state, *self.patience.doing(), len(message))
        data = encode_tick(tick, message)
        self._ticks += 1
        with self.patience.gathering(self._ticks):
            gathered = self._gather(data[:FRAME].ljust(FRAME, b"\0"))
        self.patience.ticks = heads = decode_ticks(gathered)
        states = [head.state for head in heads]
        longest = HEAD + max(head.length for head in heads)
        messages = [frame[HEAD:] for frame in gathered]
        if WAITING not in states and longest > FRAME:
            # Every rank sees the same heads, so all take part or none does.
            rest = self._gather(data[FRAME:].ljust(longest - FRAME, b"\0"))
            messages = [first + second for first, second in zip(messages, rest)]
        return states, [body[: head.length] for body, head in zip(messages, heads)]

    def _gather(self, data: bytes) -> list[bytes]:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        out = [torch.empty_like(tensor) for _ in range(self.place.size)]
        self._wait(dist.all_gather(out, tensor, group=self._group, async_op=True))
        return [t.numpy().tobytes() for t in out]

    def _wait(self, work: Any) -> None:
        self._lifelines.wait(work, self._group)

    def _explain(self, error: BaseException) -> PeerError:
        # Lifelines say who was lost. Gloo's own error does not.
        lost = isinstance(error, RuntimeError)
        cause = self._lifelines.cause(self.patience.peers) if lost else ""
        # Closing this rank's connections lets ranks notice that were not connected to the lost one.
        self._keep = False
        self._release()
        if isinstance(error, PeerError):
            return error
        if not lost:  # the error is not Gloo's but this rank's own
            return super()._explain(error)
        cause = cause or f"{self._unheard()} died, closed the loader or lost its network"
        return PeerError(
            f"{cause}, so rank {self.place.number} can make no further step ({brief(error)})"
        )

    def _unheard(self) -> str:
        """Who may be lost without a word: a rank that was stopped for long as ranks met."""
        peers = self.patience.peers
        without = [
            f"rank {other} ({peers[other]})"
            for other in partners_of(self.place.number, self.place.size)
            if other not in self._met
        ]
        return "a rank" + (f", perhaps {' or '.join(without)}," if without else "")

    def _release(self) -> None:
        self._lifelines.close()
        group, self._group = self._group, None
        if group is not None and not self._keep and dist.is_initialized():
            # The user may have destroyed all groups already.
            with contextlib.suppress(ValueError, RuntimeError, AssertionError):
                dist.destroy_process_group(group)


def brief(error: BaseException) -> str:
    """Gloo's message without the line of Gloo's source and without general advice."""
    return re.sub(r"^\[\S*\] ", "", (str(error) or repr(error)).splitlines()[0]).partition(
        ". This is "
    )[0]


def place_in_group(group: Any, context_parallel: int) -> GroupPlace:
    """Where this process stands in a loader's `group`, found without a message to other ranks."""
    if _alone(group):
        return GroupPlace(0, 1, context_parallel)
    return GroupPlace(dist.get_rank(group), dist.get_world_size(group), context_parallel)


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where tensors must be that the ranks of a group send each other."""
    return torch.device("cpu" if dist.get_backend(group) in _ON_HOST else "cuda")


def make_exchange(
    group: Any, context_parallel: int, faults: Faults, loader: tuple[int, int]
) -> RankExchange:
    """The exchange of a loader's `group`. All its ranks must call this; see `GlooExchange`."""
    if _alone(group):
        return LocalExchange(Patience(faults.warn_after))
    return GlooExchange(group, context_parallel=context_parallel, faults=faults, loader=loader)


def _alone(group: Any) -> bool:
    """Whether a loader over `group` feeds this process only."""
    distributed = dist.is_available() and dist.is_initialized()
    return group == "local" or (group is None and not distributed)
