"""Indices on their way from the sampler to the workers, in chunks."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from torch.utils.data import ChainDataset

import evenstep
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


def test_chunks_are_small_for_the_first_window_alone(duplex: Pipe) -> None:
    reader, writer = duplex
    Feeder(writer, 0, enumerate(range(110)), None)
    sizes = [len(chunk) for chunk in asked_by(IndexFeed(reader, 32, workers=2))]
    assert sizes == [8, 8, 8, 8, 32, 32, 14]
    stream = evenstep.DataLoader(ChainDataset([]), policy=evenstep.Even(8192), num_workers=2)
    assert stream.state_dict()["job"]["iterable"]["chunk_size"] == 32
