"""How a pass ends its session, whatever ended the pass."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from evenstep.errors import EvenstepError
from evenstep.loader.batcher.batcher_messages import EpochEnd, EpochSpec
from evenstep.loader.iterator import Observers, StepIterator
from evenstep.loader.transport.rank_exchange import LocalExchange, RankExchange
from evenstep.loader.transport.session import Session


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
        batcher=batcher,
        keep_batcher=keep,
        exchange=exchange,
        feeder=None,
        epoch=EpochSpec(serial=0, epoch=3),
        pin_memory=False,
        observers=Observers(
            received=lambda step, progress: seen.append((step, progress)), ended=seen.append
        ),
    )


@pytest.fixture
def recording():
    exchange = Recording()
    yield exchange
    exchange.close()


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
