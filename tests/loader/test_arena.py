"""Slabs are recycled, never while anybody looks into them, and never outlive the processes."""

from __future__ import annotations

import gc
import multiprocessing
import os

import numpy as np
import pytest
import torch

from evenstep.loader.arena import Reader, Writer


def sample(size: int, value: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((size,), value), "y": torch.full((3,), float(value))}


def test_objects_come_back_equal_and_aligned():
    writer, reader = Writer(), Reader()
    obj = {"a": torch.arange(7), "b": np.arange(3.0), "c": "text", "d": torch.ones(2, 2)}
    back = reader.unpack(writer.pack(obj))
    assert torch.equal(back["a"], obj["a"])
    assert torch.equal(back["d"], obj["d"])
    np.testing.assert_array_equal(back["b"], obj["b"])
    assert back["c"] == "text"
    assert back["a"].data_ptr() % 64 == back["d"].data_ptr() % 64 == 0


def test_an_object_without_buffers_takes_no_slab():
    assert Writer().pack({"text": "only"}).slab == -1


def test_a_slab_is_used_again_once_nothing_looks_into_it():
    writer, reader = Writer(), Reader()
    slabs = set()
    for turn in range(20):
        packed = writer.pack(sample(1000, turn))
        slabs.add(packed.slab)
        assert reader.unpack(packed)["x"][0] == turn
    assert len(slabs) == 1


def test_any_view_of_any_part_keeps_its_slab():
    writer, reader = Writer(), Reader()
    kept = [reader.unpack(writer.pack(sample(1000, turn)))["x"][5:9] for turn in range(4)]
    for turn in range(10, 20):
        reader.unpack(writer.pack(sample(1000, turn)))
    assert [view.tolist() for view in kept] == [[turn] * 4 for turn in range(4)]
    busy = {writer.pack(sample(1000)).slab for _ in range(3)}
    del kept
    gc.collect()
    assert writer.pack(sample(1000)).slab not in busy


def test_memory_stays_that_of_the_most_objects_alive_at_once():
    writer, reader = Writer(), Reader()
    slabs = set()
    alive: list[object] = []
    for turn in range(200):
        packed = writer.pack(sample(500 + turn % 30, turn))
        slabs.add(packed.slab)
        alive.append(reader.unpack(packed))
        if len(alive) == 6:
            alive.pop(0)
    assert len(slabs) <= 12


def test_a_larger_object_replaces_a_slab_and_the_reader_lets_go_of_it():
    writer, reader = Writer(), Reader()
    small = writer.pack(sample(100))
    reader.unpack(small)
    large = writer.pack(sample(100_000))
    assert large.slab != small.slab
    assert large.retired == (small.slab,)
    kept = reader.unpack(large)
    assert kept["x"].numel() == 100_000
    assert writer.pack(sample(100)).slab == 2  # the small one is gone, the large one busy


def test_without_anonymous_memory_buffers_travel_in_the_message(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    packed = Writer().pack(sample(50, 3))
    assert packed.slab == -1
    back = Reader().unpack(packed)
    back["x"] += 1
    assert back["x"].tolist() == [4] * 50


def _write(connection, turns: int) -> None:
    writer = Writer()
    for turn in range(turns):
        connection.send(writer.pack(sample(2000, turn)))
        connection.recv()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_objects_cross_processes_and_leave_no_file(method):
    before = set(os.listdir("/dev/shm"))
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_write, args=(theirs, 5))
    process.start()
    theirs.close()
    reader = Reader()
    last = None
    for turn in range(5):
        assert ours.poll(60)
        last = reader.unpack(ours.recv())
        assert last["x"].tolist() == [turn] * 2000
        ours.send(None)
    process.join(60)
    assert process.exitcode == 0
    assert last is not None
    assert last["x"][0] == 4  # what has been mapped outlives its writer
    assert set(os.listdir("/dev/shm")) <= before
