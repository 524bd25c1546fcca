"""The shelf: samples by arrival number, held back when it is full, let go when a pass ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import InvariantError, SampleError
from evenstep.loader.batcher.reception import Received
from evenstep.loader.batcher.sample_store import Closed, SampleStore

WAIT = 20.0


def put(shelf: SampleStore, numbers: list[int], planned: int = 0) -> None:
    """Puts the samples "s3", "s7" of the dataset indices "i3", "i7" for the numbers 3 and 7."""
    shelf.put(
        Received(
            samples=[f"s{n}" for n in numbers],
            indices=[f"i{n}" for n in numbers],
            numbers=np.array(numbers, np.int64),
            columns=np.array([[n, n, 0] for n in numbers], np.int64),
            planned=planned,
            digests=np.array([7 * n for n in numbers], np.int64),
        )
    )


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs `work`; gives the thread and what came of it: its value or its exception."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(1, 9), st.randoms())
def test_what_was_put_is_taken_by_number_with_its_index_once(
    numbers: list[int], chunk: int, draw: random.Random
) -> None:
    numbers.sort()
    shelf = SampleStore(10_000)
    for first in range(0, len(numbers), chunk):
        put(shelf, numbers[first : first + chunk])
    shelf.end()
    draw.shuffle(numbers)
    while numbers:
        some = [numbers.pop() for _ in range(min(draw.randint(1, 5), len(numbers)))]
        samples, indices = shelf.take(array(*some))
        assert samples == [f"s{n}" for n in some]
        assert indices == tuple(f"i{n}" for n in some)
        with pytest.raises(InvariantError):
            shelf.take(array(some[0]))


def test_columns_come_in_order_and_those_of_planned_samples_to_nobody() -> None:
    shelf = SampleStore(100)
    put(shelf, [2, 5], planned=2)
    put(shelf, [6, 8, 9], planned=1)
    put(shelf, [10])
    shelf.end()
    seen = []
    while (arrived := shelf.next_arrived()) is not None:
        numbers = arrived.numbers.tolist()
        assert arrived.columns[:, 0].tolist() == numbers
        assert arrived.digests is not None
        assert arrived.digests.tolist() == [7 * n for n in numbers]
        seen += numbers
    assert seen == [8, 9, 10]
    assert shelf.take(array(5, 6))[0] == ["s5", "s6"]


def test_who_puts_waits_for_room_and_goes_on_when_there_is_some() -> None:
    shelf = SampleStore(3)
    put(shelf, [0, 1, 2])
    thread, results = in_thread(lambda: put(shelf, [3, 4]))
    thread.join(0.1)
    assert not results
    shelf.take(array(1))
    thread.join(WAIT)
    assert results == [None]
    assert shelf.take(array(0, 2, 3, 4))[0] == ["s0", "s2", "s3", "s4"]


def test_who_takes_waits_until_all_are_there() -> None:
    shelf = SampleStore(10)
    put(shelf, [0])
    thread, results = in_thread(lambda: shelf.take(array(3, 0)))
    thread.join(0.1)
    assert not results
    put(shelf, [1, 2, 3])
    thread.join(WAIT)
    assert results == [(["s3", "s0"], ("i3", "i0"))]


def test_who_plans_waits_for_new_samples() -> None:
    shelf = SampleStore(10)
    put(shelf, [0], planned=1)
    thread, results = in_thread(shelf.next_arrived)
    thread.join(0.1)
    assert not results
    put(shelf, [1])
    thread.join(WAIT)
    assert results[0][1].tolist() == [1]


def test_a_sample_looked_at_stays() -> None:
    shelf = SampleStore(10)
    thread, results = in_thread(lambda: shelf.peek(4))
    put(shelf, [4])
    thread.join(WAIT)
    assert results == ["s4"]
    assert shelf.take(array(4))[0] == ["s4"]


def test_after_the_end_what_is_there_is_still_given_and_nothing_more_is_taken_in() -> None:
    shelf = SampleStore(2)
    put(shelf, [0, 1])
    blocked, refused = in_thread(lambda: put(shelf, [2]))
    waiting, missed = in_thread(lambda: shelf.take(array(2)))
    shelf.end()
    for thread in (blocked, waiting):
        thread.join(WAIT)
    assert [type(error) for error in refused + missed] == [Closed, InvariantError]
    assert str(missed[0]) == "samples [2] never arrived"
    arrived = shelf.next_arrived()
    assert arrived is not None
    assert arrived.numbers.tolist() == [0, 1]
    assert shelf.next_arrived() is None
    assert shelf.take(array(0, 1))[0] == ["s0", "s1"]


def test_once_no_columns_are_wanted_only_what_is_planned_is_taken_in() -> None:
    shelf = SampleStore(2)
    put(shelf, [0, 1], planned=2)
    blocked, refused = in_thread(lambda: put(shelf, [4]))
    shelf.stop()
    blocked.join(WAIT)
    assert type(refused[0]) is Closed
    waiting, results = in_thread(lambda: shelf.take(array(3)))
    put(shelf, [2, 3], planned=2)  # though the shelf is full
    waiting.join(WAIT)
    assert results == [(["s3"], ("i3",))]
    with pytest.raises(Closed):
        put(shelf, [5])
    assert shelf.take(array(0, 1, 2))[0] == ["s0", "s1", "s2"]


def test_the_first_failure_is_what_planning_and_taking_meet_after_what_came_before() -> None:
    shelf = SampleStore(10)
    put(shelf, [0])
    thread, results = in_thread(lambda: shelf.take(array(1)))
    shelf.end(SampleError("sample 1 is torn"))
    shelf.end(SampleError("a later one"))
    shelf.end()
    assert shelf.next_arrived() is not None
    with pytest.raises(SampleError, match="sample 1 is torn"):
        shelf.next_arrived()
    thread.join(WAIT)
    assert str(results[0]) == "sample 1 is torn"
    assert shelf.take(array(0))[0] == ["s0"]


def test_leaving_lets_everybody_go() -> None:
    shelf = SampleStore(1)
    put(shelf, [0], planned=1)
    calls = [
        in_thread(shelf.next_arrived),
        in_thread(lambda: shelf.take(array(1))),
        in_thread(lambda: shelf.peek(2)),
        in_thread(lambda: put(shelf, [3])),
    ]
    shelf.close()
    for thread, results in calls:
        thread.join(WAIT)
        assert type(results[0]) is Closed
    with pytest.raises(Closed):
        shelf.take(array(0))
