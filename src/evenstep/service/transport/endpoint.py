"""Where a role is reached, and the keys that let its peers in.

On one machine it is a socket in a folder that only this user may enter. From other machines it is a
TCP port; a CURVE key pair of the job lets its own processes in and nobody else, and encrypts what
they send (RFC 26 of ZeroMQ). The keys travel with the endpoint, over channels that are trusted
already: Ray's, a pipe to a child, or a file that only its owner may read.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError


def import_zmq() -> Any:
    """The module `zmq`.

    Raises:
        ImportError: pyzmq is not installed.
    """
    try:
        import zmq
    except ImportError as error:
        raise ImportError(
            "the service sends messages between processes by pyzmq: pip install "
            "'evenstep[processes]'; or choose backend='local', which runs all roles in this process"
        ) from error
    return zmq


@dataclass(frozen=True)
class Keys:
    """Of one job. Whoever has them may send it messages."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def new(cls) -> Keys:
        zmq = import_zmq()
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())

    def __repr__(self) -> str:
        return "Keys(...)"


@dataclass(frozen=True)
class Endpoint:
    """The addresses of a role."""

    machine: str
    path: str
    """Of the socket on its machine."""
    tcp: str | None = None
    """Such as "tcp://10.0.0.7:40123"; None if only its own machine reaches it."""
    keys: Keys | None = None
    """Needed for `tcp`."""

    @property
    def address(self) -> str:
        """The one that this process reaches, as ZeroMQ writes it.

        Raises:
            ConfigurationError: none; the role is on another machine and takes no TCP.
        """
        here = self.machine == machine()
        if here and (self.tcp is None or os.path.exists(self.path)):  # else in another container
            return f"ipc://{self.path}"
        if self.tcp is None:
            raise ConfigurationError(
                f"the service at {self.path} runs on another machine; connect from there, or run "
                "it on Ray, which reaches other machines"
            )
        return self.tcp


@cache
def machine() -> str:
    """What tells this machine from others, until it is restarted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{os.uname().nodename}-{os.getuid()}"


def new_folder() -> str:
    """A folder for sockets that only this user may enter. Its path is short: that of a socket may
    have about a hundred characters."""
    return tempfile.mkdtemp(
        prefix="evenstep-", dir=None if len(tempfile.gettempdir()) < 60 else "/tmp"
    )


def remove_socket(endpoint: Endpoint) -> None:
    """Removes the socket of a role of this machine, and its folder. Idempotent."""
    if endpoint.machine == machine():
        path = Path(endpoint.path)
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            path.parent.rmdir()
