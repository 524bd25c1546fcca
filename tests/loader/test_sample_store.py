"""The sample store: samples by arrival number; `put` waits while it is full."""

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
from evenstep.loader.batcher.chunk_checks import ReadySamples
from evenstep.loader.batcher.sample_store import Closed, SampleStore

WAIT = 20.0


def put(store: SampleStore, numbers: list[int], planned: int = 0) -> None:
    """Puts the samples "s3", "s7" of the dataset indices "i3", "i7" for the numbers 3 and 7."""
    store.put(
        ReadySamples(
            samples=[f"s{n}" for n in numbers],
            indices=[f"i{n}" for n in numbers],
            numbers=np.array(numbers, np.int64),
            columns=np.array([[n, n, 0] for n in numbers], np.int64),
            planned=planned,
            digests=np.array([7 * n for n in numbers], np.int64),
        )
    )


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
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


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(1, 9), st.randoms())
def test_what_was_put_is_taken_by_number_with_its_index_once(
    numbers: list[int], chunk: int, draw: random.Random
) -> None:
    numbers.sort()
    store = SampleStore(10_000)
    for first in range(0, len(numbers), chunk):
        put(store, numbers[first : first + chunk])
    store.end()
    draw.shuffle(numbers)
    while numbers:
        some = [numbers.pop() for _ in range(min(draw.randint(1, 5), len(numbers)))]
        samples, indices = store.take(array(*some))
        assert samples == [f"s{n}" for n in some]
        assert indices == tuple(f"i{n}" for n in some)
        with pytest.raises(InvariantError):
            store.take(array(some[0]))


def test_columns_come_in_order_without_those_of_planned_samples() -> None:
    store = SampleStore(100)
    put(store, [2, 5], planned=2)
    put(store, [6, 8, 9], planned=1)
    put(store, [10])
    store.end()
    seen = []
    while (ready := store.next_unplanned()) is not None:
        numbers = ready.numbers.tolist()
        assert ready.columns[:, 0].tolist() == numbers
        assert ready.digests is not None
        assert ready.digests.tolist() == [7 * n for n in numbers]
        seen += numbers
    assert seen == [8, 9, 10]
    assert store.take(array(5, 6))[0] == ["s5", "s6"]


def test_put_waits_for_room() -> None:
    store = SampleStore(3)
    put(store, [0, 1, 2])
    thread, results = in_thread(lambda: put(store, [3, 4]))
    thread.join(0.1)
    assert not results
    store.take(array(1))
    thread.join(WAIT)
    assert results == [None]
    assert store.take(array(0, 2, 3, 4))[0] == ["s0", "s2", "s3", "s4"]


def test_take_waits_until_all_are_there() -> None:
    store = SampleStore(10)
    put(store, [0])
    thread, results = in_thread(lambda: store.take(array(3, 0)))
    thread.join(0.1)
    assert not results
    put(store, [1, 2, 3])
    thread.join(WAIT)
    assert results == [(["s3", "s0"], ("i3", "i0"))]


def test_planning_waits_for_new_samples() -> None:
    store = SampleStore(10)
    put(store, [0], planned=1)
    thread, results = in_thread(store.next_unplanned)
    thread.join(0.1)
    assert not results
    put(store, [1])
    thread.join(WAIT)
    assert results[0].numbers.tolist() == [1]


def test_a_sample_looked_at_stays() -> None:
    store = SampleStore(10)
    thread, results = in_thread(lambda: store.peek(4))
    put(store, [4])
    thread.join(WAIT)
    assert results == ["s4"]
    assert store.take(array(4))[0] == ["s4"]


def test_after_the_end_what_is_there_is_still_given_and_nothing_more_is_taken_in() -> None:
    store = SampleStore(2)
    put(store, [0, 1])
    blocked, refused = in_thread(lambda: put(store, [2]))
    waiting, missed = in_thread(lambda: store.take(array(2)))
    store.end()
    for thread in (blocked, waiting):
        thread.join(WAIT)
    assert [type(error) for error in refused + missed] == [Closed, InvariantError]
    assert str(missed[0]) == "samples [2] never arrived"
    ready = store.next_unplanned()
    assert ready is not None
    assert ready.numbers.tolist() == [0, 1]
    assert store.next_unplanned() is None
    assert store.take(array(0, 1))[0] == ["s0", "s1"]


def test_once_no_columns_are_wanted_only_what_is_planned_is_taken_in() -> None:
    store = SampleStore(2)
    put(store, [0, 1], planned=2)
    blocked, refused = in_thread(lambda: put(store, [4]))
    store.stop()
    blocked.join(WAIT)
    assert type(refused[0]) is Closed
    waiting, results = in_thread(lambda: store.take(array(3)))
    put(store, [2, 3], planned=2)  # though the store is full
    waiting.join(WAIT)
    assert results == [(["s3"], ("i3",))]
    with pytest.raises(Closed):
        put(store, [5])
    assert store.take(array(0, 1, 2))[0] == ["s0", "s1", "s2"]


def test_the_first_failure_is_what_planning_and_taking_meet_after_what_came_before() -> None:
    store = SampleStore(10)
    put(store, [0])
    thread, results = in_thread(lambda: store.take(array(1)))
    store.end(SampleError("sample 1 is torn"))
    store.end(SampleError("a later one"))
    store.end()
    assert store.next_unplanned() is not None
    with pytest.raises(SampleError, match="sample 1 is torn"):
        store.next_unplanned()
    thread.join(WAIT)
    assert str(results[0]) == "sample 1 is torn"
    assert store.take(array(0))[0] == ["s0"]


def test_close_ends_every_wait() -> None:
    store = SampleStore(1)
    put(store, [0], planned=1)
    calls = [
        in_thread(store.next_unplanned),
        in_thread(lambda: store.take(array(1))),
        in_thread(lambda: store.peek(2)),
        in_thread(lambda: put(store, [3])),
    ]
    store.close()
    for thread, results in calls:
        thread.join(WAIT)
        assert type(results[0]) is Closed
    with pytest.raises(Closed):
        store.take(array(0))
