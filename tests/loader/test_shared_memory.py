"""Slabs are recycled, never while anybody looks into them, and never outlive the processes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import resource
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import LoaderDiedError
from evenstep.loader.transport.shared_memory import Reader, Writer, from_buffers, to_buffers

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="without anonymous memory nothing is shared"
)


def sample(size: int, value: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((size,), value), "y": torch.full((3,), float(value))}


@given(
    st.lists(
        st.tuples(st.sampled_from(["pack", "drop"]), st.integers(1, 3000), st.integers(0, 9)),
        max_size=60,
    )
)
def test_what_either_side_keeps_stays_and_all_else_is_used_again(turns):
    writer, reader = Writer(), Reader()
    kept: list[tuple[torch.Tensor, int]] = []  # and what fills them
    most = 0
    for number, (act, size, choice) in enumerate(turns):
        if act == "pack":
            again = [(view[:size], value) for view, value in kept[choice : choice + 2]]
            fresh = (torch.full((size,), number), number)
            packed = writer.pack([view for view, _ in (fresh, *again)])
            back = reader.unpack(packed)
            kept += [(view, value) for view, (_, value) in zip(back, (fresh, *again))]
            del again, fresh, back
        elif kept:
            kept.pop(choice % len(kept))
        for view, value in kept:
            assert (view == value).all()
        most = max(most, len(kept))
    assert len(writer._slabs) <= most + 1


def test_a_small_part_that_is_kept_keeps_itself_alone():
    writer, reader = Writer(), Reader(copied=100)
    kept, large = [], []
    for number in range(20):
        back = reader.unpack(writer.pack(sample(1000, number)))
        kept.append(back["y"][0])  # of 12 bytes
        assert back["x"].tolist() == [number] * 1000
        if number % 5 == 0:
            large.append(back["x"][0])
    assert torch.stack(kept).tolist() == list(range(20))
    assert torch.stack(large).tolist() == [0, 5, 10, 15]
    assert len(writer._slabs) <= len(large) + 2


def test_a_slab_that_outlives_its_reader_is_given_back():
    writer, reader = Writer(), Reader()
    kept = reader.unpack(writer.pack(sample(1000, 7)))["x"]
    del reader
    gc.collect()
    others = {writer.pack(sample(1000)).slab for _ in range(3)}
    assert kept[0] == 7
    del kept
    assert writer.pack(sample(1000)).slab not in others


def test_what_a_forked_child_lets_go_of_stays_with_the_parent():
    writer, reader = Writer(), Reader()
    kept = reader.unpack(writer.pack(sample(1000, 7)))["x"]
    if (child := os.fork()) == 0:
        del kept
        os._exit(0)
    os.waitpid(child, 0)
    busy = {writer.pack(sample(1000, turn)).slab for turn in range(3)}
    assert len(busy) == 3
    assert kept.tolist() == [7] * 1000


def test_memory_is_given_back_without_python_code_that_a_signal_could_interrupt():
    writer, reader = Writer(), Reader()
    batches = [reader.unpack(writer.pack(sample(1000)))]
    ran = []
    sys.setprofile(lambda frame, event, function: ran.append((event, frame.f_code.co_name)))
    batches.clear()
    sys.setprofile(None)
    assert [name for event, name in ran if event == "call"] == []


def test_without_anonymous_memory_buffers_travel_in_the_message(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    packed = Writer().pack(sample(50, 3))
    assert packed.slab == -1
    back = Reader().unpack(packed)
    back["x"] += 1
    assert back["x"].tolist() == [4] * 50


@contextlib.contextmanager
def limited(which: int, limit: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_memory_that_runs_out_is_an_error_that_says_how_much_was_asked_for_and_what_to_lower():
    writer, reader = Writer(), Reader()
    kept = reader.unpack(writer.pack(sample(1000)))
    with limited(resource.RLIMIT_FSIZE, 1 << 20), pytest.raises(LoaderDiedError) as caught:
        writer.pack(sample(250_000))
    message = str(caught.value)
    assert message.startswith(f"shared memory ran out: process {os.getpid()} asked for 2,000,")
    assert "in 1 slabs" in message
    assert "lower buffer_size, prefetch or num_workers" in message
    # Nothing is lost: what was packed before stays, and the same goes through later.
    assert kept["x"].tolist() == [0] * 1000
    assert reader.unpack(writer.pack(sample(250_000, 7)))["x"][-1] == 7


def test_files_that_run_out_are_an_error_in_writers_and_readers_that_names_their_limit():
    writer, other = Writer(), Writer()
    packed = writer.pack(sample(1000))
    lowest_free = os.dup(0)
    os.close(lowest_free)
    for act in (lambda: Reader().unpack(packed), lambda: other.pack(sample(1000))):
        with limited(resource.RLIMIT_NOFILE, lowest_free), pytest.raises(LoaderDiedError) as caught:
            act()
        assert f"an open file, of which {lowest_free} are allowed" in str(caught.value)
        assert "ulimit -n" in str(caught.value)
    assert Reader().unpack(packed)["x"].tolist() == [0] * 1000


def test_a_message_whose_writer_has_died_can_be_unpickled_and_says_so_when_it_is_read():
    # An error while torch unpickles would make it look for the cause, by temporary files.
    def write(connection):
        connection.send_bytes(pickle.dumps(Writer().pack(sample(1000))))
        os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=write, args=(theirs,))
    process.start()
    message = ours.recv_bytes()
    multiprocessing.connection.wait([process.sentinel])
    packed = pickle.loads(message)
    with pytest.raises(ProcessLookupError, match=rf"{process.pid} died \(killed by SIGKILL\)"):
        Reader().unpack(packed)
    process.join()


@pytest.mark.parametrize(
    "tensor",
    [
        *(
            torch.arange(6).reshape(2, 3).to(dtype)
            for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn)
        ),
        torch.empty(3, 0, 2, dtype=torch.int64),
        torch.tensor(7),
        torch.arange(12).reshape(3, 4).T,
        torch.arange(12)[::3],
        torch.arange(4).expand(5, 4),
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(3, requires_grad=True),
    ],
    ids=str,
)
def test_tensors_of_every_dtype_and_layout_come_back_equal(tensor):
    data, buffers = to_buffers(tensor)
    if tensor.shape == (2, 3):
        assert [buffer.nbytes for buffer in buffers] == [tensor.nbytes]
    back = from_buffers(data, [bytearray(buffer) for buffer in buffers])
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert back.requires_grad == tensor.requires_grad
    if tensor.itemsize == 1:  # some of which torch cannot compare
        back, tensor = back.view(torch.uint8), tensor.view(torch.uint8)
    assert torch.equal(back.to_dense(), tensor.to_dense())
