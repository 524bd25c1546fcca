"""`Server`: takes messages for a role, and sends its answers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from evenstep.service.transport.endpoint import (
    Endpoint,
    Keys,
    SocketFolder,
    import_zmq,
    machine,
    remove_socket,
)
from evenstep.service.transport.frames import COPIED_BYTES, Frame

LARGEST_QUESTION = 256 << 20
"""Bytes that somebody on the network may send at a time, who may not have proved yet who it is.
Questions are small; what trainers report may have some megabytes."""
_HANDSHAKE = 10_000  # milliseconds in which one that has connected must prove who it is
_FAREWELL = 500  # milliseconds in which the last answers are sent

Answering = Callable[[list[Frame]], "Future[list[Frame]]"]
"""From a message's frames to those of its answer. Called in the server's thread, so it must not
wait; the future may be done by any thread, or never, for a question that lasts as long as the
connection."""


class Server:
    """Listens from its construction on, in a thread of its own."""

    def __init__(
        self,
        answering: Answering,
        *,
        name: str,
        host: str | None = None,
        keys: Keys | None = None,
        port: int | None = None,
    ) -> None:
        """
        Args:
            name: of the socket.
            host: an address of this machine, to listen on a TCP port of it too.
            keys: needed with `host`.
            port: to take if it is free.
        """
        zmq = import_zmq()
        self._answering = answering
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._authenticator: Any = None
        self._folder = SocketFolder()
        path = str(self._folder.path / name)
        self._router.bind(f"ipc://{path}")
        self._routers, tcp = [self._router], None
        if host is not None:
            assert keys is not None
            self._authenticator = _authenticator(self._context, keys)
            outer = _curve_router(zmq, self._context, keys)
            port = _bind(zmq, outer, f"tcp://{_in_brackets(host)}", port)
            self._routers.append(outer)
            tcp = f"tcp://{_in_brackets(host)}:{port}"
        for router in self._routers:
            router.copy_threshold = COPIED_BYTES
        self.endpoint = Endpoint(machine(), path, tcp, keys)
        self._done: deque[tuple[Any, list[Frame], list[Frame]]] = deque()
        """Router, route and answer of questions that are answered, and not sent yet."""
        self._bell, self._ring = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._bell.bind("inproc://bell")
        self._ring.connect("inproc://bell")
        self._ring_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"evenstep-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the connections, and removes the socket. Idempotent. Peers that wait for an answer
        learn that it is gone."""
        with self._ring_lock:
            if self._closed:
                return
            self._closed = True
            self._ring.send(b"")
        self._thread.join()
        remove_socket(self.endpoint)
        self._folder.close()

    def _serve(self) -> None:
        zmq = import_zmq()
        poller = zmq.Poller()
        for socket in (self._bell, *self._routers):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._bell in ready:
                self._bell.recv()
                if self._closed:
                    break
            for router in self._routers:
                if router in ready:
                    self._take(router)
            self._send_answers()
        self._send_answers()
        for socket in (self._bell, self._ring):
            socket.close(0)
        for router in self._routers:
            router.close(_FAREWELL)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def _send_answers(self) -> None:
        while self._done:
            router, route, answer = self._done.popleft()
            router.send_multipart([*route, *answer], copy=False)

    def _take(self, router: Any) -> None:
        route, *frames = router.recv_multipart(copy=False)
        future = self._answering([frame.buffer for frame in frames])

        def done(answered: Future[list[Frame]]) -> None:
            if answered.exception() is not None:  # the role has ended
                return
            self._done.append((router, [route.bytes], answered.result()))
            if threading.current_thread() is not self._thread:
                with self._ring_lock:  # a socket is used by one thread at a time
                    if not self._closed:
                        self._ring.send(b"")

        future.add_done_callback(done)


def _authenticator(context: Any, keys: Keys) -> Any:
    """Lets in those that have the job's keys."""
    from zmq.auth.thread import ThreadAuthenticator

    class OfThisJob:
        def callback(self, domain: str, key: bytes) -> bool:
            return key == keys.client_public

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain="*", credentials_provider=OfThisJob())
    return authenticator


def _curve_router(zmq: Any, context: Any, keys: Keys) -> Any:
    router = context.socket(zmq.ROUTER)
    router.maxmsgsize = LARGEST_QUESTION
    router.handshake_ivl = _HANDSHAKE
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = keys.server_public, keys.server_secret
    keep_alive(zmq, router)
    return router


def keep_alive(zmq: Any, socket: Any) -> None:
    """Lets the kernel check within 5 s of silence that the other machine is there, by questions of
    which three may be lost. It also answers for stopped processes, which ZeroMQ's own heartbeat
    would declare dead."""
    socket.tcp_keepalive = socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = 1
    socket.tcp_keepalive_cnt = 4


def _bind(zmq: Any, router: Any, address: str, port: int | None) -> int:
    """Takes the given port if it is free, otherwise any."""
    if port is not None:
        with suppress(zmq.ZMQError):
            router.bind(f"{address}:{port}")
            return port
    found: int = router.bind_to_random_port(address)
    return found


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
