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
from evenstep.protocol.wire import abort_message, check_no_abort

WAIT = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield ours, theirs


def reason_in(message: bytes | None) -> str:
    assert message
    with pytest.raises(PeerError) as caught:
        check_no_abort([b"", message])
    return str(caught.value)


def test_messages_of_its_own_pass_arrive_in_order_and_then_an_end(pipe) -> None:
    ours, theirs = pipe
    session = Session(ours, serial=2)
    assert session.message(0.01) is None
    for sent in ((1, b"stale"), (2, b"one"), (1, b""), (2, b"two"), (2, b"")):
        theirs.send(sent)
    assert [session.message(WAIT) for _ in range(4)] == [b"one", b"two", b"", b""]


def test_a_batcher_that_hung_up_is_reported_once(pipe) -> None:
    ours, theirs = pipe
    session = Session(ours, serial=0)
    theirs.send((0, b"last words"))
    theirs.close()
    assert session.message(WAIT) == b"last words"
    assert reason_in(session.message(WAIT)) == "rank 1 failed: its batcher process died"
    assert session.message(WAIT) == b""


def test_a_dead_batcher_is_reported_though_a_child_of_it_holds_the_pipe(pipe) -> None:
    ours, theirs = pipe
    theirs.send((0, b"last words"))
    session = Session(ours, 0, alive=lambda: False)
    assert session.message(WAIT) == b"last words"
    assert "its batcher process died" in reason_in(session.message(WAIT))


def test_leaving_ends_the_session_at_once_and_tells_a_reason_once(pipe) -> None:
    ours, _ = pipe
    quiet, loud = Session(ours, 0), Session(ours, 0)
    quiet.leave()
    loud.leave("LoaderDiedError: out of memory")
    assert quiet.message(WAIT) == b""
    assert reason_in(loud.message(WAIT)) == "rank 1 failed: LoaderDiedError: out of memory"
    assert loud.message(WAIT) == b""


def test_a_reason_goes_before_the_end_that_the_batcher_makes_of_it(pipe) -> None:
    ours, theirs = pipe
    waits = threading.Event()
    session = Session(ours, 0, alive=lambda: waits.set() is None)
    heard: list[bytes | None] = []
    thread = threading.Thread(target=lambda: heard.append(session.message(WAIT)))
    thread.start()
    assert waits.wait(WAIT)
    session.leave("LoaderDiedError: the sampler hangs")
    theirs.send((0, b""))  # as the batcher does when it is told to abandon the pass
    thread.join(WAIT)
    assert reason_in(heard[0]) == "rank 1 failed: LoaderDiedError: the sampler hangs"
    assert session.message(WAIT) == b""


def test_a_rank_that_left_does_not_answer_a_batcher_that_reads_no_more(pipe) -> None:
    ours, theirs = pipe
    session = Session(ours, 0)
    session.leave()
    session.reply([b"x" * 10_000_000])  # would block for ever
    assert not theirs.poll()


def test_an_abort_after_the_last_exchange_is_kept_for_the_end_of_the_pass(pipe) -> None:
    session = Session(pipe[0], 0)
    session.note([b"", b""])
    assert session.failure is None
    session.note([abort_message("CollateError: ragged"), b""])
    session.note([b"", abort_message("a later one")])
    assert str(session.failure) == "rank 0 failed: CollateError: ragged"


def test_one_rank_alone_hears_itself_and_sessions_follow_each_other() -> None:
    exchange = LocalExchange()
    for serial in range(3):
        ours, theirs = multiprocessing.Pipe()
        session = Session(ours, serial)
        exchange.begin(session)
        ports = PipePorts(theirs, serial, 1, lambda result: None)
        for message in (b"hello", b"x" * 100_000):
            assert ports.exchange(message) == [message]
        assert not session.over.is_set()
        ports.finish()
        assert session.over.wait(WAIT)
    exchange.close()


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
    for answer in ((0, [], []), (1, [b"hello"], [])):
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
