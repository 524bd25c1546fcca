"""Indices on their way from the sampler to the workers: in order, in chunks, of one pass only."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ChainDataset

import evenstep
from evenstep.errors import SampleError
from evenstep.loader.batcher.intake import IndexFeed
from evenstep.loader.runtime import Feeder

Pipe = tuple[Connection, Connection]


def asked_by(feed: IndexFeed) -> Iterator[list[Any]]:
    """The indices of each chunk that the workers are asked for."""
    for (request,) in feed:
        assert request.epoch_seed == feed.epoch_seed
        assert feed.requested[-1][1] == request.indices
        yield list(request.indices)


@pytest.fixture
def duplex() -> Iterator[Pipe]:
    reader, writer = multiprocessing.Pipe()
    with writer:
        with reader:
            yield reader, writer
        # A feeder that reads on would read the next test's pipe, which may get the same number.
        for thread in threading.enumerate():
            if thread.name == "evenstep-feeder":
                thread.join(20)


def dealing(writer: Connection, serial: int = 0, after: Feeder | None = None) -> Feeder:
    """Numbers 0 and 1 are left from before a resume; entries are dealt, e as index 10 e."""
    numbers = itertools.count(2)

    def deals(entries: Any) -> Iterator[tuple[int, int]]:
        return ((next(numbers), 10 * entry) for entry in entries.tolist())

    return Feeder(writer, serial, enumerate([5, 6]), after, deals)


def dealt_feed(reader: Connection, size: int, serial: int = 0) -> IndexFeed:
    feed = IndexFeed(reader, size, workers=0)
    feed.serial, feed.deals = serial, True
    return feed


def test_chunks_grow_with_the_samples_that_were_asked_for(duplex: Pipe) -> None:
    reader, writer = duplex
    Feeder(writer, 0, enumerate(range(400)), None)
    sizes = [len(chunk) for chunk in asked_by(IndexFeed(reader, 32, workers=2))]
    assert sizes[:4] == [8, 8, 8, 8]
    assert sizes[-3:-1] == [32, 32]
    assert sizes[:-1] == sorted(sizes[:-1])
    assert sum(sizes) == 400
    stream = evenstep.DataLoader(ChainDataset([]), policy=evenstep.Even(8192), num_workers=2)
    assert stream.state_dict()["job"]["iterable"]["chunk_size"] == 32


def test_a_feed_asks_for_nothing_rather_than_wait_for_a_deal_that_a_chunk_decides(
    duplex: Pipe,
) -> None:
    reader, writer = duplex
    dealing(writer)
    feed = dealt_feed(reader, 3)
    chunks = asked_by(feed)
    assert next(chunks) == [5, 6]
    # That chunk is under way, and no deal follows before it has come.
    assert [next(chunks) for _ in range(2)] == [[], []]
    assert list(feed.requested) == [((0, 1), (5, 6)), ((), ()), ((), ())]
    feed.request(None)
    assert set(map(tuple, chunks)) <= {()}


def test_a_deal_that_an_abandoned_pass_asked_for_is_not_served_in_the_next(duplex: Pipe) -> None:
    reader, writer = duplex
    first = dealing(writer)
    old = dealt_feed(reader, 8)
    assert next(asked_by(old)) == [5, 6]
    old.request(np.arange(100, 103))
    first.leave()
    old.request(None)  # as the batcher does at the end of every pass
    dealing(writer, 1, first)
    feed = dealt_feed(reader, 8, serial=1)
    chunks = filter(None, asked_by(feed))
    assert next(chunks) == [5, 6]
    feed.requested.clear()
    feed.request(np.array([4]))
    assert next(chunks) == [40]
    feed.request(None)
    assert list(chunks) == []


@pytest.mark.parametrize("fails", [True, False])
def test_what_the_batcher_asks_of_a_feeder_that_has_ended_does_not_fill_the_pipe(
    duplex: Pipe, fails: bool
) -> None:
    def sampler() -> Iterator[tuple[int, int]]:
        if fails:
            raise FileNotFoundError("index.bin")
        yield 0, 5

    reader, writer = duplex
    feeder = Feeder(writer, 0, sampler(), None, lambda entries: [])
    asked = asked_by(dealt_feed(reader, 8))
    if fails:
        with pytest.raises(SampleError, match=r"index\.bin"):
            next(asked)
    else:
        next(asked)
        feeder.leave()
    feed = dealt_feed(reader, 8)
    feed.request(np.arange(200_000))  # more than a pipe holds
    feed.request(None)
