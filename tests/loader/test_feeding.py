"""Indices on their way from the sampler to the workers: in order, in chunks, of one pass only."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.loader.feeder import Feeder
from evenstep.loader.intake import FeederError, IndexFeed

Pipe = tuple[Connection, Connection]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        yield reader, writer


def chunks_of(reader: Connection, size: int, *, serial: int = 0, spare: Any = 99) -> list[Any]:
    feed = IndexFeed(reader, size, spare)
    feed.serial = serial
    chunks = list(feed)
    asked = list(feed.asked)
    assert [list(indices) for indices, _ in asked] == chunks
    assert [is_spare for _, is_spare in asked] == [chunk == [spare] for chunk in chunks]
    return chunks


@given(st.integers(0, 1500), st.integers(1, 700))
def test_chunks_are_the_samplers_indices_in_order_all_full_but_the_last(count: int, size: int):
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        Feeder(writer, 0, iter(range(count)), None)
        chunks = chunks_of(reader, size, spare="spare")
    if count == 0:
        assert chunks == [["spare"]]
        return
    assert list(itertools.chain.from_iterable(chunks)) == list(range(count))
    assert {len(chunk) for chunk in chunks[:-1]} <= {size}
    assert len(chunks[-1]) <= size


def test_a_rank_without_indices_and_without_a_first_sample_asks_for_nothing(pipe: Pipe) -> None:
    reader, writer = pipe
    Feeder(writer, 0, [], None)
    assert chunks_of(reader, 4, spare=None) == []


def test_what_an_abandoned_pass_left_in_the_pipe_is_thrown_away(pipe: Pipe) -> None:
    reader, writer = pipe
    first = Feeder(writer, 0, range(1000), None)
    second = Feeder(writer, 1, range(5), first)
    first.leave()
    assert chunks_of(reader, 3, serial=1) == [[0, 1, 2], [3, 4]]
    assert second is not None


def test_passes_follow_each_other_through_one_pipe(pipe: Pipe) -> None:
    reader, writer = pipe
    first = Feeder(writer, 0, range(4), None)
    Feeder(writer, 1, range(4, 6), first)
    assert chunks_of(reader, 8, serial=0) == [[0, 1, 2, 3]]
    assert chunks_of(reader, 8, serial=1) == [[4, 5]]


def test_an_endless_sampler_is_read_as_far_as_the_pipe_holds_and_stops_when_left(
    pipe: Pipe,
) -> None:
    reader, writer = pipe
    drawn = itertools.count()
    feeder = Feeder(writer, 0, drawn, None)
    feed = iter(IndexFeed(reader, 10, None))
    assert [next(feed) for _ in range(3)] == [list(range(b, b + 10)) for b in (0, 10, 20)]
    feeder.leave()
    rest = list(feed)  # ends, since the feeder does
    assert rest[-1][-1] == next(drawn) - 1


def test_a_sampler_that_raises_is_told_after_what_it_gave(pipe: Pipe) -> None:
    def sampler() -> Iterator[int]:
        yield from range(512)
        raise FileNotFoundError("index.bin")

    reader, writer = pipe
    Feeder(writer, 0, sampler(), None)
    feed = iter(IndexFeed(reader, 512, None))
    assert next(feed) == list(range(512))
    with pytest.raises(FeederError, match=r"the sampler raised FileNotFoundError: index\.bin"):
        next(feed)


def test_a_feeder_ends_when_nobody_reads() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    before = threading.active_count()
    Feeder(writer, 0, itertools.count(), None)
    reader.close()
    for thread in threading.enumerate():
        if thread.name == "evenstep-feeder":
            thread.join(20)
    assert threading.active_count() <= before
    writer.close()


def test_indices_of_any_kind_travel(pipe: Pipe) -> None:
    reader, writer = pipe
    indices = ["a", (1, 2), 3]
    Feeder(writer, 0, indices, None)
    assert chunks_of(reader, 2) == [["a", (1, 2)], [3]]
