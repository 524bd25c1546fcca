"""Sockets between the roles of a service: what is sent arrives, from those who may send, and nobody
waits for who is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays
from ray_cluster import stop, until

pytest.importorskip("zmq", reason="pyzmq is not installed")

import torch

import evenstep.service as es
import evenstep.service.transport.server as server_module
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.client.discovery import job_in
from evenstep.service.remote.channels import Location, RolePlace, SocketChannel
from evenstep.service.source_loader.staged_steps import Fetched
from evenstep.service.transport.connection import ConnectionLostError, Connections
from evenstep.service.transport.endpoint import (
    Endpoint,
    Keys,
    NameLock,
    SocketFolder,
    import_zmq,
    read_endpoint,
    write_endpoint,
)
from evenstep.service.transport.frames import OWN_FRAME_BYTES, from_frames, to_frames
from evenstep.service.transport.server import Server

SECONDS = 30.0


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_side=0, max_side=6)))
def test_arrays_arrive_as_they_were(array: Any) -> None:
    found = from_frames(to_frames({"turned": array.T, "each": [array]}))
    for sent, came in ((array.T, found["turned"]), (array, found["each"][0])):
        np.testing.assert_array_equal(came, sent)
        assert came.dtype.newbyteorder("=") == sent.dtype.newbyteorder("=")


def tokens(*lengths: int, dtype: Any = np.int64) -> list[np.ndarray[Any, Any]]:
    return [np.arange(n).astype(dtype) for n in lengths]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


SAMPLES: dict[str, list[Any]] = {
    "none": [],
    "arrays": [{"input_ids": each} for each in tokens(3, 0, 5)],
    "arrays and text": [{"input_ids": each, "text": str(each)} for each in tokens(3, 5)],
    "lists": [{"input_ids": each.tolist()} for each in tokens(3, 5)],
    "tensors": [{"input_ids": torch.from_numpy(each)} for each in tokens(3, 5)],
    "two types of numbers": [{"input_ids": t} for t in (*tokens(3), *tokens(3, dtype=np.int32))],
    "tensors of bytes": [{"a": torch.ones(n).to(torch.bfloat16)} for n in (0, OWN_FRAME_BYTES)],
    "swapped bytes": [{"input_ids": each} for each in tokens(3, 5, dtype=">i8")],
    "strings": [{"words": np.array(["a", "bc"])}, {"words": np.array(["def"])}],
    "objects": [{"any": np.array([None, "a"], object)}, {"any": np.array([1], object)}],
    "matrices": [{"pixels": np.ones((n, 4), np.float32)} for n in (2, 3)],
    "large": [{"input_ids": each} for each in tokens(OWN_FRAME_BYTES, 2 * OWN_FRAME_BYTES)],
    "other fields": [{"input_ids": tokens(3)[0]}, {"labels": tokens(3)[0]}],
    "another order": [{"a": tokens(1)[0], "b": 1}, {"b": 2, "a": tokens(2)[0]}],
    "no fields": [{}, {}],
    "bare arrays": list(tokens(3, 5)),
    "a dict and none": [{"input_ids": tokens(3)[0]}, tokens(3)[0]],
}


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
def test_samples_arrive_as_they_were_sent(samples: list[Any]) -> None:
    frames = to_frames(Fetched(np.arange(len(samples)), samples))
    arrived = from_frames([bytearray(frame) for frame in frames])
    assert arrived.rows.tolist() == list(range(len(samples)))
    assert len(arrived.samples) == len(samples)
    assert all(map(same, samples, arrived.samples))


def test_what_arrived_can_be_written_to_without_changing_another_sample() -> None:
    samples = [{"input_ids": each} for each in tokens(3000, 3000)]
    frames = to_frames(Fetched(np.arange(2), samples))
    one, other = from_frames([bytearray(frame) for frame in frames]).samples
    one["input_ids"][:] = -1
    assert same(other, samples[1])


# Sockets


def echo(pipe: Any, keys: Keys) -> None:
    def answering(frames: list[Any]) -> Future[list[Any]]:
        future: Future[list[Any]] = Future()
        asked = from_frames(frames)
        if asked != "never":
            future.set_result(to_frames(asked))
        return future

    pipe.send(Server(answering, name="echo", host="127.0.0.1", keys=keys).endpoint)
    time.sleep(10 * SECONDS)


class Echo:
    def __init__(self) -> None:
        self.keys = Keys.new()
        pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=echo, args=(other, self.keys))
        self.process.start()
        assert pipe.poll(SECONDS)
        here: Endpoint = pipe.recv()
        self.endpoints = {"ipc": here, "tcp": replace(here, machine="another")}


@pytest.fixture
def server() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.process.kill()
    made.process.join()


@pytest.mark.parametrize("channel", ["ipc", "tcp"])
def test_messages_are_answered_and_a_death_ends_all_waits(server: Echo, channel: str) -> None:
    connections = Connections(server.endpoints[channel])
    large = np.arange(1_000_000)
    sent = [connections.send(to_frames(each)) for each in (["small"], {"large": large}, "never")]
    assert from_frames(sent[0].frames()) == ["small"]
    found = from_frames(sent[1].frames())["large"]
    np.testing.assert_array_equal(found, large)
    found += 1  # it is its receiver's
    assert not sent[2].wait(0.05)
    os.kill(server.process.pid, signal.SIGKILL)
    with pytest.raises(ConnectionLostError):
        sent[2].frames()
    for _ in range(3):  # by connections that were used before, and by new ones
        with pytest.raises(ConnectionLostError):
            connections.send(to_frames("more")).frames()


def test_connections_to_a_process_that_died_are_closed(server: Echo) -> None:
    """Or a job whose loaders are restarted all the time would run out of sockets."""

    class Successors:
        def locate(self, dead: Location | None) -> Location:
            return successor

    dead, successor = (
        Location(SocketChannel(server.endpoints[channel])) for channel in ("ipc", "tcp")
    )
    place = RolePlace("Source Loader 0", dead, Successors())
    before = psutil.Process().num_fds()
    for sent in [dead.channel.send([("message", (), {})]) for _ in range(8)]:
        assert sent.wait(SECONDS)
    assert psutil.Process().num_fds() >= before + 8
    assert place.successor(dead) is successor
    until(lambda: psutil.Process().num_fds() <= before, "the end of connections")


def test_who_is_stopped_is_waited_for(server: Echo) -> None:
    connections = Connections(server.endpoints["tcp"])
    connections.send(to_frames("first")).wait()
    stop(server.process.pid or 0)
    late = connections.send(to_frames("late"))
    assert not late.wait(1.0)
    os.kill(server.process.pid, signal.SIGCONT)
    assert from_frames(late.frames()) == "late"


@pytest.mark.soak
@pytest.mark.parametrize("channel", ["ipc", "tcp"])
def test_who_is_stopped_is_waited_for_by_new_connections_too(server: Echo, channel: str) -> None:
    """ZeroMQ would wait half a minute for its first words."""
    stop(server.process.pid or 0)
    late = Connections(server.endpoints[channel]).send(to_frames("late"))
    assert not late.wait(33.0)
    os.kill(server.process.pid or 0, signal.SIGCONT)
    assert from_frames(late.frames()) == "late"


def test_without_the_keys_of_the_job_nobody_is_let_in(server: Echo) -> None:
    public, secret = import_zmq().curve_keypair()
    keys = replace(server.keys, client_public=public, client_secret=secret)
    stranger = Connections(replace(server.endpoints["tcp"], keys=keys))
    with pytest.raises(ConnectionLostError):
        stranger.send(to_frames("let me in")).frames()
    plain = Connections(replace(server.endpoints["tcp"], keys=None)).send(to_frames("or me"))
    with pytest.raises(ConnectionLostError):
        plain.frames()
    assert stat.S_IMODE(Path(server.endpoints["ipc"].path).parent.stat().st_mode) == 0o700
    assert "secret" not in repr(server.endpoints["tcp"])


def test_a_file_says_where_a_service_is_to_its_owner_alone(server: Echo, tmp_path: Path) -> None:
    path = tmp_path / "job.evenstep"
    write_endpoint(path, server.endpoints["tcp"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Connections(read_endpoint(path)).send(to_frames("hello")).frames()
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="can be written by others"):
        read_endpoint(path)
    path.chmod(0o640)
    with pytest.raises(
        ConfigurationError, match="has the keys of a job, and can be read by others"
    ):
        read_endpoint(path)
    path.chmod(0o600)
    for damaged in ("", "{", "[]", '{"machine": 1}', path.read_text().replace("path", "pith")):
        path.write_text(damaged)
        with pytest.raises(ConfigurationError, match="cannot be read as the address"):
            read_endpoint(path)


def test_any_number_of_questions_may_be_on_their_way(server: Echo) -> None:
    """ZeroMQ's own limit is 1,023 sockets, of which each takes three."""
    connections = Connections(server.endpoints["ipc"])
    sent = [connections.send(to_frames(number)) for number in range(400)]
    assert [from_frames(each.frames()) for each in sent] == list(range(400))
    connections.close()


def test_a_question_that_is_too_large_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LARGEST_QUESTION", 1 << 16)
    small = Echo()
    try:
        connections = Connections(small.endpoints["tcp"])
        assert from_frames(connections.send(to_frames(b"x" * 1000)).frames()) == b"x" * 1000
        with pytest.raises(ConnectionLostError):
            connections.send(to_frames(b"x" * (1 << 17))).frames()
        assert from_frames(connections.send(to_frames("next")).frames()) == "next"
    finally:
        small.process.kill()
        small.process.join()


def test_a_service_that_is_stopped_is_named_after_the_patience(
    server: Echo, tmp_path: Path
) -> None:
    path = tmp_path / "job.evenstep"
    write_endpoint(path, server.endpoints["ipc"])
    stop(server.process.pid or 0)
    says = r"job.evenstep is there, and has said nothing for .* s: its process is stopped"
    with pytest.raises(EvenstepError, match=says):
        es.Client(path, rank=0, patience=1.0)
    with pytest.raises(EvenstepError, match=says):
        job_in(path, patience=0.5)
    os.kill(server.process.pid or 0, signal.SIGCONT)


def test_a_name_is_locked_until_its_holder_ends(tmp_path: Path) -> None:
    first, second = NameLock(tmp_path / "job.evenstep"), NameLock(tmp_path / "job.evenstep")
    assert (first.held, second.held) == (True, False)
    second.close()
    assert not NameLock(tmp_path / "job.evenstep").held
    first.close()
    again = NameLock(tmp_path / "job.evenstep")
    assert again.held
    again.close()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose sockets have short paths."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


SOCKETS = """
import sys, time
from evenstep.service.transport.server import Server
print(Server(None, name="role").endpoint.path, flush=True)
sys.stdin.read()
"""


def test_sockets_of_a_process_that_was_killed_are_removed_by_the_next_one(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", SOCKETS]
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as living:
        dead, alive = (Path(each.stdout.readline().strip()) for each in (killed, living))
        killed.kill()
        killed.wait()
        assert dead.is_socket()
        folder = SocketFolder()
        assert {*short.iterdir()} == {alive.parent, folder.path}
        assert alive.is_socket()
        assert folder.path.stat().st_mode & 0o077 == 0
        folder.close()
