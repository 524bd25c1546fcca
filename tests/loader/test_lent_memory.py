"""What is made in a lent slab reaches the reader uncopied, and nobody overwrites it."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

from evenstep.loader.transport import shared_memory
from evenstep.loader.transport.shared_memory import Reader, Writer

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="without anonymous memory nothing is shared"
)
SIZE = 100_000


def made_in(writer: Writer, value: int) -> torch.Tensor:
    tensor = torch.frombuffer(writer.lend(8 * SIZE), dtype=torch.int64)
    return tensor.fill_(value)


def test_a_tensor_in_lent_memory_is_not_copied():
    writer, reader = Writer(), Reader()
    tensor = made_in(writer, 1)
    back = reader.unpack(writer.pack({"x": tensor, "small": torch.arange(5)}))
    tensor[7] = 99  # the same memory, so the reader sees it
    assert back["x"][7] == 99
    assert back["small"].tolist() == [0, 1, 2, 3, 4]


def test_a_slab_is_used_again_when_neither_borrower_nor_reader_looks_into_it():
    writer, reader = Writer(), Reader()
    slabs = set()
    for turn in range(10):
        packed = writer.pack({"x": made_in(writer, turn), "n": torch.tensor([turn])})
        slabs.add(packed.slab)
        back = reader.unpack(packed)
        assert back["x"].unique().tolist() == back["n"].tolist() == [turn]
        del back
    assert len(slabs) == 1


@pytest.mark.parametrize("keeper", ["borrower", "reader"])
def test_what_either_side_keeps_is_never_overwritten(keeper):
    writer, reader = Writer(), Reader()
    kept = []
    for turn in range(6):
        tensor = made_in(writer, turn)
        back = reader.unpack(writer.pack([tensor]))[0]
        kept.append(tensor if keeper == "borrower" else back)
        del tensor, back
        gc.collect()
    assert [t.unique().tolist() for t in kept] == [[turn] for turn in range(6)]


def test_a_batch_is_packed_while_another_thread_is_being_lent_memory(monkeypatch):
    writer, reader = Writer(), Reader()
    found = []

    class Interrupted(shared_memory._Lease):
        def __new__(cls, *arguments):
            # As if the thread that packs ran here, where nothing keeps it from running.
            found.append(writer.pack({"x": torch.arange(5)}))
            return super().__new__(cls, *arguments)

    monkeypatch.setattr(shared_memory, "_Lease", Interrupted)
    writer.lend(100)
    monkeypatch.undo()
    assert reader.unpack(found[0])["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_batch_that_is_packed_twice_is_copied_the_second_time():
    writer, reader = Writer(), Reader()
    tensor = made_in(writer, 3)
    first = reader.unpack(writer.pack([tensor]))[0]
    second = reader.unpack(writer.pack([tensor]))[0]
    del first
    gc.collect()
    del tensor
    made_in(writer, 4)  # takes the first's slab if that is free
    assert second.unique().tolist() == [3]


def test_views_arrays_and_strided_parts_of_lent_memory_come_back_equal():
    writer, reader = Writer(), Reader()
    tensor = made_in(writer, 0).copy_(torch.arange(SIZE)).view(100, -1)
    obj = {"all": tensor, "rows": tensor[3:5], "columns": tensor[:, ::7], "array": tensor.numpy()}
    back = reader.unpack(writer.pack(obj))
    for name in ("all", "rows", "columns"):
        assert torch.equal(back[name], obj[name])
    np.testing.assert_array_equal(back["array"], obj["array"])


def test_what_finds_no_room_behind_lent_memory_is_packed_elsewhere():
    writer, reader = Writer(), Reader()
    obj = {"x": made_in(writer, 5), "larger": torch.arange(3 * SIZE)}
    back = reader.unpack(writer.pack(obj))
    assert torch.equal(back["x"], obj["x"])
    assert torch.equal(back["larger"], obj["larger"])


def test_two_lent_tensors_in_one_object_come_back_equal():
    writer, reader = Writer(), Reader()
    back = reader.unpack(writer.pack([made_in(writer, 1), made_in(writer, 2)]))
    assert [t.unique().tolist() for t in back] == [[1], [2]]


def test_lent_memory_that_is_not_packed_is_free_again():
    writer = Writer()
    for turn in range(5):
        made_in(writer, turn)
    tensor = made_in(writer, 9)
    assert writer.pack([tensor]).slab == 0


def test_without_anonymous_memory_lent_memory_is_ordinary(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    writer = Writer()
    back = Reader().unpack(writer.pack([made_in(writer, 6)]))[0]
    assert back.unique().tolist() == [6]
