"""The roads that `transport.py` measures: each asks a server in another process for an array."""

from __future__ import annotations

import multiprocessing
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ROADS", "SIZES", "Road"]

SIZES = {"300 B": 300, "914 KB": 914_000}
_QUESTION = 300  # bytes
_CPU = 1
"""Asked for instead of a size: the server's processor time, as 8 bytes."""


class OpenRoad(ABC):
    """A connection to a server."""

    @abstractmethod
    def ask(self, size: int) -> Any:
        """An array of so many bytes."""

    def cpu(self) -> float:
        """Processor seconds of the server."""
        seconds: float = struct.unpack("d", bytes(self.ask(_CPU)))[0]
        return seconds

    def __enter__(self) -> OpenRoad:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


Road = Callable[[str], OpenRoad]
"""Opens a road; its sockets are in the folder."""


class Answers:
    """What a server answers."""

    def __init__(self) -> None:
        self._held = {size: np.zeros(size, np.uint8) for size in SIZES.values()}

    def to(self, size: int) -> Any:
        if size == _CPU:
            return np.frombuffer(struct.pack("d", time.process_time()), np.uint8)
        return self._held[size]


def _question(size: int) -> bytes:
    return struct.pack("q", size).ljust(_QUESTION, b"x")


def _size(question: Any) -> int:
    return int(struct.unpack_from("q", question)[0])


def _started(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A server's process, and what it says once it listens."""
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    process = context.Process(target=target, args=(ready, *arguments), daemon=True)
    process.start()
    return process, ready.get(timeout=60)


class UnixSocket(OpenRoad):
    def __init__(self, folder: str) -> None:
        path = f"{folder}/plain"
        self._process, _ = _started(_serve_unix, path)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def ask(self, size: int) -> Any:
        self._socket.sendall(_question(size))
        answer = np.empty(8 if size == _CPU else size, np.uint8)
        self._socket.recv_into(memoryview(answer), 0, socket.MSG_WAITALL)
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.join()


def _serve_unix(ready: Any, path: str) -> None:
    answers, listener = Answers(), socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    ready.put(None)
    connection, _ = listener.accept()
    while question := connection.recv(_QUESTION, socket.MSG_WAITALL):
        connection.sendall(answers.to(_size(question)))


class ZmqRoad(OpenRoad):
    def __init__(self, folder: str, *, tcp: bool = False, curve: bool = False) -> None:
        import zmq

        address = "tcp://127.0.0.1" if tcp else f"ipc://{folder}/zmq"
        keys = zmq.curve_keypair() if curve else None
        self._process, address = _started(_serve_zmq, address, keys)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        if keys:
            self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
            self._socket.curve_serverkey = keys[0]
        self._socket.connect(address)

    def ask(self, size: int) -> Any:
        self._socket.send(_question(size))
        return np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        self._socket.close(linger=0)
        self._context.term()


def _serve_zmq(ready: Any, address: str, keys: tuple[bytes, bytes] | None) -> None:
    import zmq

    answers, server = Answers(), zmq.Context().socket(zmq.ROUTER)
    if keys:
        server.curve_server, server.curve_publickey, server.curve_secretkey = True, *keys
    if address.startswith("tcp"):
        address = f"{address}:{server.bind_to_random_port(address)}"
    else:
        server.bind(address)
    ready.put(address)
    while True:
        client, question = server.recv_multipart()
        server.send_multipart([client, answers.to(_size(question))], copy=False)


class RayRoad(OpenRoad):
    def __init__(self, folder: str, *, compiled: bool = False) -> None:
        import ray

        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=300_000_000,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )

        class Server:
            def __init__(self) -> None:
                self._answers = Answers()

            def answer(self, question: bytes) -> Any:
                return self._answers.to(_size(question))

        self._ray = ray
        self._server = ray.remote(Server).remote()
        self._graph = None
        if compiled:
            from ray.dag import InputNode

            with InputNode() as question:
                node = self._server.answer.bind(question)
            self._graph = node.experimental_compile()

    def ask(self, size: int) -> Any:
        if self._graph is not None:
            # The first answer comes when both sides have imported torch.
            return self._ray.get(self._graph.execute(_question(size)), timeout=120)
        return self._ray.get(self._server.answer.remote(_question(size)))

    def close(self) -> None:
        if self._graph is not None:
            self._graph.teardown()
        self._ray.shutdown()


ROADS: dict[str, Road] = {
    "Unix socket": UnixSocket,
    "pyzmq, ipc": ZmqRoad,
    "pyzmq, tcp": lambda folder: ZmqRoad(folder, tcp=True),
    "pyzmq, tcp+CURVE": lambda folder: ZmqRoad(folder, tcp=True, curve=True),
    "Ray call": RayRoad,
    "Ray graph": lambda folder: RayRoad(folder, compiled=True),
}
