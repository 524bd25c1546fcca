from __future__ import annotations

import datetime
import errno
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from evenstep.loader.transport import lifelines
from evenstep.loader.transport.lifeline_sockets import Meeting, partners_of
from evenstep.loader.transport.lifelines import (
    DIED,
    GRACE,
    LEFT,
    RESET,
    SILENT,
    Lifelines,
    Loss,
    RankLostError,
)
from evenstep.loader.transport.peers import Peer


class Stuck:
    """A collective that does not end."""

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        if timeout is None:  # the thread that keeps it
            return
        raise RuntimeError("Operation timed out!")


def ranks_of(count: int) -> list[Lifelines]:
    lines: list[dict[int, Connection]] = [{} for _ in range(count)]
    for rank in range(count):
        for other in partners_of(rank, count):
            if other > rank:
                lines[rank][other], lines[other][rank] = multiprocessing.Pipe()
    return [Lifelines(rank, each) for rank, each in enumerate(lines)]


def talk(ranks: list[Lifelines]) -> None:
    """As many looks as news may need hops."""
    for _ in range(len(ranks).bit_length()):
        for rank in ranks:
            rank.check(Stuck(), None)


@given(st.integers(2, 40), st.data())
def test_all_ranks_learn_who_died_however_many_do(count: int, data: Any) -> None:
    dead = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(count - 1, 5)))
    ranks = ranks_of(count)
    for rank in dead:
        ranks[rank].release()  # as the system does
    living = [each for rank, each in enumerate(ranks) if rank not in dead]
    talk(living)
    for each in living:
        losses = each.losses()
        assert losses
        assert set(losses) <= dead
        assert {loss.how for loss in losses.values()} == {DIED}
    for each in living:
        each.close()


def test_a_rank_that_leaves_is_missed_only_in_a_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(lifelines.time, "monotonic", lambda: now)
    first, second = ranks_of(2)
    second.close()
    first.check(Stuck(), None)  # what it has sent may still arrive
    now += GRACE + 0.1
    with pytest.raises(RankLostError):
        first.check(Stuck(), None)
    assert first.losses() == {1: Loss(LEFT, 1)}


class Ended:
    """A lifeline that has ended. The system says once how."""

    def __init__(self, error: OSError) -> None:
        self._error = error
        self._line, self._other = multiprocessing.Pipe()
        self._other.close()  # which makes it readable
        self._told = False

    def fileno(self) -> int:
        return self._line.fileno()

    def _tell(self) -> None:
        told, self._told = self._told, True
        if not told:
            raise self._error

    def recv_bytes(self) -> bytes:
        self._tell()
        raise EOFError

    def send_bytes(self, data: bytes) -> None:
        self._tell()
        raise BrokenPipeError

    def close(self) -> None:
        self._line.close()


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (TimeoutError(errno.ETIMEDOUT, "timed out"), SILENT),
        (OSError(errno.EHOSTUNREACH, "no route"), SILENT),
        (ConnectionResetError(errno.ECONNRESET, "reset"), RESET),
    ],
)
def test_ranks_that_are_lost_at_the_same_time_are_not_said_to_have_died(
    error: OSError, how: str
) -> None:
    """The first of them is told to the others, which uses up what the system says of these."""
    lines: Any = {rank: Ended(error) for rank in (1, 2, 3)}
    assert Lifelines(0, lines).losses() == {rank: Loss(how, 0) for rank in (1, 2, 3)}


def _hold(line: Connection, said: Connection) -> None:
    lines = Lifelines(0, {1: line})
    child = os.fork()
    if child:
        said.send(child)
    signal.pause()
    lines.close()


def test_a_child_does_not_keep_a_lifeline_of_its_parent_open() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    told, said = context.Pipe(duplex=False)
    process = context.Process(target=_hold, args=(there, said))
    process.start()
    there.close()
    child = told.recv()
    try:
        assert not here.poll(0.2)
        process.kill()
        assert here.poll(10)
    finally:
        os.kill(child, signal.SIGKILL)
        process.join()


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def meet(meetings: list[Meeting], peers: list[Peer]) -> list[dict[int, Connection]]:
    met: list[Any] = [None] * len(meetings)

    def run(rank: int) -> None:
        met[rank] = meetings[rank].meet(rank, peers, 8)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(meetings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met


@pytest.mark.parametrize(("count", "dual"), [(2, True), (3, False), (8, True)])
def test_ranks_meet_over_tcp(
    group: None, count: int, dual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dual:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    meetings = [Meeting(None) for _ in range(count)]
    peers = [Peer.read(0, Peer.here(door=each.door).card()) for each in meetings]
    strangers = [socket.create_connection(("127.0.0.1", peers[-1].door.port)) for _ in range(8)]
    strangers[0].sendall(b"no token 0")
    strangers[1].close()
    met = meet(meetings, peers)
    for each in strangers:
        each.close()
    for rank, lines in enumerate(met):
        assert sorted(lines) == partners_of(rank, count)
        for line in lines.values():
            copy = socket.socket(fileno=os.dup(line.fileno()))
            assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            copy.close()
    Lifelines(0, met[0]).release()
    for rank, lines in enumerate(met[1:], 1):
        if 0 in lines:
            assert Lifelines(rank, lines).losses() == {0: Loss(DIED, rank)}
