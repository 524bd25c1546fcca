"""A session relays what the batcher says, and says in its place that it died or was left."""

from __future__ import annotations

import multiprocessing
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from evenstep.errors import PeerError
from evenstep.loader.batcher.ports import PipePorts
from evenstep.loader.transport.rank_exchange import LocalExchange
from evenstep.loader.transport.session import Session

WAIT = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def test_a_batcher_that_still_sends_as_its_pass_ends_does_not_wait_for_ever() -> None:
    ours, theirs = multiprocessing.Pipe()

    def send() -> None:  # and holds a copy of the trainer's end, whose closing it would not notice
        theirs.send((0, b"x" * 10_000_000))
        theirs.send((0, b""))

    batcher = multiprocessing.get_context("fork").Process(target=send)
    batcher.start()
    session = Session(ours, 0, batcher.is_alive)
    session.leave()
    exchange = LocalExchange()
    exchange.begin(session)
    assert session.over.wait(WAIT)
    batcher.join(WAIT)
    ended = batcher.exitcode
    batcher.kill()
    assert ended == 0
    exchange.close()


def test_what_a_pass_that_is_left_still_sends_is_not_taken_for_the_next_one(pipe) -> None:
    ours, theirs = pipe
    first, second = Session(ours, 0), Session(ours, 1)
    first.leave()
    exchange = LocalExchange()
    exchange.begin(first)
    exchange.begin(second)
    assert first.over.wait(WAIT)
    for sent in ((0, b"late"), (0, b""), (1, b"hello")):
        theirs.send(sent)
    for answer in ((0, []), (1, [b"hello"])):
        assert theirs.poll(WAIT)
        assert theirs.recv() == answer
    theirs.send((1, b""))
    assert second.over.wait(WAIT)
    exchange.close()


def test_a_large_answer_that_nobody_waits_for_does_not_block_the_next_pass(pipe) -> None:
    ours, theirs = pipe
    exchange, first, second = LocalExchange(), Session(ours, 0), Session(ours, 1)
    exchange.begin(first)
    large = b"x" * 10_000_000
    left = PipePorts(theirs, 0, 1, lambda result: None)
    left.announce(large)
    time.sleep(0.2)  # so that the answer fills the pipe
    first.leave()
    left.close()
    left.finish()
    left.await_answer()
    exchange.begin(second)
    assert PipePorts(theirs, 1, 1, lambda result: None).exchange(large) == [large]
    second.leave()
    exchange.close()


class Broken(LocalExchange):
    def _serve(self, session: Session) -> None:
        raise ConnectionError("cable cut")


def test_a_failed_exchange_ends_every_session_and_says_why() -> None:
    exchange = Broken()
    sessions = [Session(multiprocessing.Pipe()[0], serial) for serial in range(2)]
    for session in sessions:
        exchange.begin(session)
    for session in sessions:
        assert session.over.wait(WAIT)
        session.leave()
    assert isinstance(exchange.failure, PeerError)
    assert "cable cut" in str(exchange.failure)
    exchange.close()


def test_the_thread_keeps_no_session_and_ends_when_closed() -> None:
    exchange = LocalExchange()
    names = [thread.name for thread in threading.enumerate()]
    assert "evenstep-exchange" in names
    session = Session(multiprocessing.Pipe()[0], 0)
    session.leave()
    exchange.begin(session)
    assert session.over.wait(WAIT)
    held = weakref.ref(session)
    del session
    deadline = time.monotonic() + WAIT
    while held() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held() is None
    exchange.close()
