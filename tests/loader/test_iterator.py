"""How a pass ends its session, whatever ended the pass."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from typing import Any

import pytest

from evenstep.errors import EvenstepError, LoaderDiedError, PeerError, SampleError
from evenstep.loader.batcher.ports import BatcherFailure
from evenstep.loader.batcher.progress import EpochEnd
from evenstep.loader.batcher.spec import EpochSpec
from evenstep.loader.iterator import StepIterator
from evenstep.loader.transport.rank_exchange import LocalExchange, RankExchange
from evenstep.loader.transport.session import Session
from evenstep.protocol.wire import abort_message


class Step(str):
    step = 0


class Batcher:
    """Gives its `results` one by one, in place of a process."""

    def __init__(self, *results: Any) -> None:
        self.exchange, self.theirs = multiprocessing.Pipe()
        self.results = list(results)
        self.credits = 0
        self.calls: list[str] = []

    def begin(self, epoch: EpochSpec) -> None:
        self.calls.append("begin")

    def credit(self) -> None:
        self.credits += 1

    def get(self, timeout: float) -> Any:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def alive(self) -> bool:
        return True

    def cause_of_death(self) -> str:
        return "the batcher died"

    def abandon(self) -> None:
        self.calls.append("abandon")

    def close(self) -> None:
        self.calls.append("close")


class Recording(RankExchange):
    """Serves no session, and remembers the last."""

    def begin(self, session: Session) -> None:
        self.session = session


def iterator_over(
    batcher: Any, exchange: RankExchange, *, keep: bool = False, received: list[Any] | None = None
) -> StepIterator:
    """
    Args:
        received: gets what the loader would be given.
    """
    seen: list[Any] = [] if received is None else received
    return StepIterator(
        loader=None,
        batcher=batcher,
        keep_batcher=keep,
        exchange=exchange,
        feeder=None,
        epoch=EpochSpec(serial=0, epoch=3),
        pin_memory=False,
        received=lambda step, progress: seen.append((step, progress)),
        ended=seen.append,
        run_log=None,
    )


@pytest.fixture
def recording():
    exchange = Recording()
    yield exchange
    exchange.close()


def test_every_step_taken_makes_room_for_another(recording: Recording) -> None:
    batcher = Batcher(
        (Step("step 0"), "batch 0", "moved 0"), None, (Step("step 1"), "batch 1", "moved 1")
    )
    steps = iterator_over(batcher, recording)
    assert [next(steps), next(steps)] == [("batch 0", "step 0"), ("batch 1", "step 1")]
    assert batcher.credits == 2
    steps.close()


def test_the_loader_is_told_of_every_step_it_yields_and_of_none_that_is_prefetched(
    recording: Recording,
) -> None:
    received: list[Any] = []
    batcher = Batcher(*((Step(f"step {n}"), f"batch {n}", f"moved {n}") for n in range(3)))
    steps = iterator_over(batcher, recording, received=received)
    assert received == []
    next(steps)
    assert received == [("step 0", "moved 0")]
    next(steps)
    steps.close()
    assert received == [("step 0", "moved 0"), ("step 1", "moved 1")]


@pytest.mark.parametrize("keep", [False, True])
def test_closing_leaves_the_session_and_ends_the_batcher_unless_it_is_kept(
    recording: Recording, keep: bool
) -> None:
    batcher = Batcher()
    steps = iterator_over(batcher, recording, keep=keep)
    steps.close()
    steps.close()
    assert batcher.calls == ["begin", "abandon"] + ["close"] * (not keep)
    assert recording.session.message(0) == b""
    with pytest.raises(LoaderDiedError, match="pass over epoch 3 was closed"):
        next(steps)


def test_the_other_ranks_are_told_of_a_batcher_that_died(recording: Recording) -> None:
    steps = iterator_over(Batcher(LoaderDiedError("killed by SIGKILL")), recording)
    for _ in range(2):  # and every further call says the same
        with pytest.raises(LoaderDiedError, match="killed by SIGKILL"):
            next(steps)
    assert recording.session.message(0) == abort_message("LoaderDiedError: killed by SIGKILL")
    assert recording.session.message(0) == b""


def test_a_failure_of_the_batcher_is_told_as_the_trainer_may_leave_before_it_was_heard(
    recording: Recording,
) -> None:
    steps = iterator_over(Batcher(BatcherFailure(SampleError("sample 3"), "")), recording)
    with pytest.raises(SampleError, match="sample 3"):
        next(steps)
    assert recording.session.message(0) == abort_message("SampleError: sample 3")


def test_a_pass_does_not_end_before_all_ranks_are_through(recording: Recording) -> None:
    received: list[Any] = []
    batcher = Batcher(EpochEnd(0, ()))
    steps = iterator_over(batcher, recording, received=received)
    recording.session.note([b"", abort_message("CollateError: at the last step")])
    recording.session.over.set()
    with pytest.raises(PeerError, match="rank 1 failed: CollateError: at the last step"):
        next(steps)
    assert received == []


def test_a_dead_peer_is_what_is_raised_whatever_the_batcher_makes_of_it(
    recording: Recording,
) -> None:
    steps = iterator_over(
        Batcher(BatcherFailure(PeerError("rank 1 left epoch 3 early"), "")), recording
    )
    recording.failure = PeerError("rank 1 (process 7) died")
    with pytest.raises(PeerError, match="process 7"):
        next(steps)


def test_the_end_is_final_and_counts_what_stop_left_undone() -> None:
    exchange = LocalExchange()
    received: list[Any] = []
    batcher = Batcher(EpochEnd(5, ()))
    steps = iterator_over(batcher, exchange, received=received)
    batcher.theirs.send((0, b""))
    with pytest.warns(UserWarning, match="at least 5 samples"), pytest.raises(StopIteration):
        next(steps)
    with pytest.raises(StopIteration):
        next(steps)
    assert received == [EpochEnd(5, ())]
    assert batcher.calls[-1] == "close"
    exchange.close()


def test_an_interrupt_closes_the_pass(recording: Recording) -> None:
    class Interrupted(Batcher):
        def get(self, timeout: float) -> Any:
            raise KeyboardInterrupt

    batcher = Interrupted()
    steps = iterator_over(batcher, recording)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert batcher.calls[-1] == "close"
    with pytest.raises(EvenstepError):
        next(steps)


@pytest.mark.parametrize("busy", [0.0, 0.2], ids=["", "on a busy machine"])
def test_an_interrupt_while_a_pass_is_finalized_is_not_lost(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, busy: float
) -> None:
    class Interrupted(Batcher):
        def close(self) -> None:
            raise KeyboardInterrupt

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(busy)

    start = threading.Thread.start
    # A suite that is run in the background has interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = iterator_over(Interrupted(), recording)
    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  it may come at once
            del steps
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
