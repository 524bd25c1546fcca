"""`Connections`: sends messages to a role, and notices at once when it is gone.

Each message has a connection to itself until it is answered; then the next one uses it again.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.transport.endpoint import Endpoint, Keys, import_zmq
from evenstep.service.transport.frames import COPIED_BYTES, Frame
from evenstep.service.transport.server import keep_alive

_NEVER = 100_000_000
"""Milliseconds. A socket that does not reconnect at all drops answers that nobody has read yet."""
_HOST_MILLISECONDS = 5000
"""In which another machine answers, or counts as gone."""


class ConnectionLostError(Exception):
    """The role's process has ended, or cannot be reached."""


class Connections:
    """To one endpoint, from one process. Any number of threads may use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._free: list[_Connection] = []

    @cached_property
    def _address(self) -> str:
        """Found once: the socket of a role that has ended may be gone."""
        return self._endpoint.address

    def send(self, frames: list[Frame]) -> Pending:
        """Sends a message without waiting for its answer."""
        with self._lock:
            connection = self._free.pop() if self._free else None
        try:
            connection = connection or _Connection(self._address, self._endpoint.keys)
        except import_zmq().ZMQError as error:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise EvenstepError(
                f"this process cannot open another connection to the service ({error}): each takes "
                f"several files, and it may have {files:,} open at a time; raise that limit "
                "(ulimit -n), or spread its clients over more processes"
            ) from error
        connection.socket.send_multipart(frames, copy=False)
        return Pending(self, connection)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            self._free.append(connection)

    def close(self) -> None:
        """Closes connections that no message uses. Idempotent."""
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()


class _Connection:
    def __init__(self, address: str, keys: Keys | None) -> None:
        zmq = import_zmq()
        self._process = os.getpid()
        self.socket = _context().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.copy_threshold = COPIED_BYTES
        self.socket.reconnect_ivl = _NEVER
        self.socket.handshake_ivl = 0  # who is stopped is waited for, by new connections too
        if not address.startswith("ipc:") and keys is not None:
            self.socket.curve_serverkey = keys.server_public
            self.socket.curve_publickey = keys.client_public
            self.socket.curve_secretkey = keys.client_secret
            keep_alive(zmq, self.socket)
            # The kernel asks nothing while a message is on its way.
            self.socket.tcp_maxrt = self.socket.connect_timeout = _HOST_MILLISECONDS
        gone = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
        gone |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        gone |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.monitor = self.socket.get_monitor_socket(gone)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(self.monitor, zmq.POLLIN)
        self.socket.connect(address)

    def close(self) -> None:
        # A forked child has no thread that would close it, and must leave its parent's alone.
        if self._process == os.getpid() and not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)


class Pending:
    """A message that is sent, and its answer."""

    def __init__(self, connections: Connections, connection: _Connection) -> None:
        self._connections = connections
        self._connection: _Connection | None = connection
        self._frames: list[Frame] | None = None

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is answered, or cannot be any more; False if neither is in time."""
        connection = self._connection
        if connection is None:
            return True
        ready = dict(connection.poller.poll(None if seconds is None else 1000 * seconds))
        if connection.socket in ready:  # it may have been answered before the end
            received = connection.socket.recv_multipart(copy=False)
            self._frames = [frame.buffer for frame in received]
            self._connection = None
            self._connections._give_back(connection)
        elif connection.monitor in ready:
            self._connection = None
            connection.close()
        return self._connection is None

    def frames(self) -> list[Frame]:
        """The answer, which is waited for.

        Raises:
            ConnectionLostError: it cannot come any more.
        """
        self.wait()
        if self._frames is None:
            raise ConnectionLostError
        return self._frames

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # An answer that nobody waits for would be mistaken for that of the next message.
        if self._connection is not None and not ending():
            self._connection.close()


_contexts: dict[int, Any] = {}


def _context() -> Any:
    """ZeroMQ's context of this process; a forked child has its own."""
    process = os.getpid()
    if process not in _contexts:
        zmq = import_zmq()
        _contexts[process] = zmq.Context()
        # By default 1,023, of which a connection takes three.
        _contexts[process].set(zmq.MAX_SOCKETS, _contexts[process].get(zmq.SOCKET_LIMIT))
    return _contexts[process]
