"""Credits hold the batcher back, and the trainer's leaving lets it go at once."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from evenstep.errors import SampleError
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.progress import StepProgress
from evenstep.loader.batcher.sample_store import Closed

WAIT = 20.0


def make(prefetch: int = 1) -> tuple[PipePorts, Any, list[Any]]:
    ours, theirs = multiprocessing.Pipe()
    sent: list[Any] = []
    return PipePorts(theirs, 7, prefetch, sent.append), ours, sent


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    """Runs `work`; returns the thread and a list that gets its value or its exception."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_no_more_steps_are_made_than_there_are_credits() -> None:
    ports, _, _ = make(prefetch=3)
    made = 0

    def produce() -> None:
        nonlocal made
        while True:
            ports.await_credit()
            made += 1

    thread, results = in_thread(produce)
    thread.join(0.2)
    assert made == 3
    ports.credit()
    thread.join(0.2)
    assert made == 4
    ports.close()
    thread.join(WAIT)
    assert isinstance(results[0], Closed)
    assert made == 4


@pytest.mark.parametrize("leave", [PipePorts.close, PipePorts.end_delivery])
def test_waiting_for_a_credit_ends_when_the_trainer_leaves(leave: Any) -> None:
    ports, _, _ = make(prefetch=1)
    ports.await_credit()
    waiting = [in_thread(ports.await_credit) for _ in range(2)]  # of those that collate
    leave(ports)
    for thread, results in waiting:
        thread.join(WAIT)
        assert isinstance(results[0], Closed)


def test_a_failed_delivery_leaves_the_exchange_open_for_the_news() -> None:
    ports, trainer, _ = make()
    ports.end_delivery()
    thread, results = in_thread(lambda: ports.exchange(b"abort"))
    assert trainer.recv() == (7, b"abort")
    trainer.send((7, [b"abort", b"theirs"], []))
    thread.join(WAIT)
    assert results == [[b"abort", b"theirs"]]


def test_answers_to_an_earlier_pass_are_dropped() -> None:
    ports, trainer, _ = make()
    trainer.send((6, [b"old"], []))
    trainer.send((7, [b"new"], []))
    assert ports.exchange(b"mine") == [b"new"]


def test_waiting_for_the_other_ranks_ends_when_the_trainer_leaves() -> None:
    ports, trainer, _ = make()
    thread, results = in_thread(lambda: ports.exchange(b"mine"))
    assert trainer.recv() == (7, b"mine")
    ports.close()
    thread.join(WAIT)
    assert isinstance(results[0], Closed)
    for call in (lambda: ports.exchange(b"more"), lambda: ports.deliver(None, None, None)):
        with pytest.raises(Closed):
            call()


def test_a_step_is_handed_over_with_its_batch_and_its_progress() -> None:
    ports, _, sent = make()
    progress = StepProgress(np.arange(3))
    ports.deliver("step", "batch", progress)
    assert sent == [("step", "batch", progress)]


def test_a_message_that_awaits_no_answer_is_sent_to_all() -> None:
    ports, trainer, _ = make()
    ports.announce(b"abort")
    assert trainer.recv() == (7, b"abort")


def test_the_end_is_announced_even_if_the_trainer_is_gone() -> None:
    ports, trainer, _ = make()
    ports.finish()
    assert trainer.recv() == (7, b"")
    trainer.close()
    ports.finish()


def test_a_pass_ends_when_its_last_message_is_answered_or_none_will_come() -> None:
    for answer in ([b"mine", b"theirs"], []):
        ports, trainer, _ = make()
        ports.await_answer()
        ports.announce(b"mine")
        thread, _ = in_thread(ports.await_answer)
        trainer.send((6, [b"old"], []))
        thread.join(0.3)
        assert thread.is_alive()
        trainer.send((7, answer, []))
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "end", [lambda ports, _: ports.close(ends=True), lambda _, end: end.close()]
)
def test_a_batcher_that_ends_awaits_no_answer(end: Any) -> None:
    ports, trainer, _ = make()
    ports.announce(b"mine")
    thread, _ = in_thread(ports.await_answer)
    end(ports, trainer)
    thread.join(WAIT)
    assert not thread.is_alive()


def test_an_error_from_elsewhere_keeps_its_traceback() -> None:
    failure = BatcherFailure(SampleError("sample 3"), "Traceback: in the worker")
    with pytest.raises(SampleError, match="sample 3") as caught:
        failure.reraise()
    assert "in the worker" in str(caught.value.__cause__)
