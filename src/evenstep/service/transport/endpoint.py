"""Where a role is reached, the keys that let its peers in, and the files that say so.

On one machine it is a socket in a folder that only this user may enter. From other machines it is a
TCP port; a CURVE key pair of the job lets only the job's own processes in, and encrypts what they
send (RFC 26 of ZeroMQ). The keys travel with the endpoint, over channels that are trusted already:
Ray's, a pipe to a child, or a file that only its owner may read. Such a file, copied to another
host, lets a trainer join from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError, needing


def import_zmq() -> Any:
    """The module `zmq`.

    Raises:
        ImportError: pyzmq is not installed.
    """
    why = "without backend='local', which runs all roles in this process, the service needs pyzmq"
    with needing(why, "processes"):
        import zmq
    return zmq


@dataclass(frozen=True)
class Keys:
    """The keys of one job. They let their holder send it messages."""

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
    """The path of the socket on its machine."""
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
    """Identifies this machine, until it is restarted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{os.uname().nodename}-{os.getuid()}"


class SocketFolder:
    """A folder for sockets that only this user may enter. It is locked as long as this process
    lives, also for other containers that share the parent; the next one made on the same machine
    removes those of processes that were killed."""

    def __init__(self) -> None:
        # The path of a socket may have about a hundred characters.
        parent = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp")
        named = f"evenstep-{machine()[:8]}-"
        for found in parent.glob(f"{named}*"):
            _remove_if_dead(found)
        made = Path(tempfile.mkdtemp(prefix="evenstep-new-", dir=parent))
        self._held = _locked(made)
        self.path = made.rename(parent / f"{named}{made.name[-8:]}")  # locked under this name

    def close(self) -> None:
        """Idempotent."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _locked(folder: Path) -> int | None:
    """The open folder, locked for this process; None if another process holds it, or the file
    system has no locks."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _remove_if_dead(folder: Path) -> None:
    with suppress(OSError):  # it is another user's, or another process removes it, too
        held = _locked(folder)
        if held is None:
            return
        try:
            if os.fstat(held).st_uid == os.getuid():  # nobody else can put another one here
                for socket in os.listdir(held):
                    os.unlink(socket, dir_fd=held)
                folder.rmdir()
        finally:
            os.close(held)


def remove_socket(endpoint: Endpoint) -> None:
    """Removes the socket of a role of this machine, and its folder. Idempotent."""
    if endpoint.machine == machine():
        path = Path(endpoint.path)
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            path.parent.rmdir()


SUFFIX = ".evenstep"


def path_of(name: str) -> Path:
    """The file of a job of that name on this machine."""
    return _own_folder() / f"{name}{SUFFIX}"


class NameLock:
    """Held by the process that runs a job of a name, as long as it lives. Two that start at once
    both find no job of that name."""

    def __init__(self, file: Path) -> None:
        self._path = file.with_suffix(".lock")
        self._file = self._path.open("w")
        self.held = True
        """Not if another process holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.held = False

    def close(self) -> None:
        """Idempotent."""
        if self.held and not self._file.closed:
            self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # of forks, too
        self._file.close()


def write_endpoint(path: Path, endpoint: Endpoint) -> None:
    own = Path(f"{path}.{os.getpid()}")
    own.touch(mode=0o600)
    own.write_text(json.dumps(asdict(endpoint), default=bytes.decode) + "\n")
    own.replace(path)


def read_endpoint(path: Path) -> Endpoint:
    """
    Raises:
        ConfigurationError: there is no such file, others may write it or read its keys, or it is
            none of a service.
    """
    try:
        text, mode = path.read_text(), path.stat()
        if mode.st_uid not in (os.getuid(), 0) or mode.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                f"{path} can be written by others, who could send this process anything; "
                "let only its owner write it (chmod 600)"
            )
        plain = json.loads(text)
        keys = plain.pop("keys")
        if keys and mode.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise ConfigurationError(
                f"{path} has the keys of a job, and can be read by others, who could join it; let "
                "only its owner read it (chmod 600)"
            )
        plain["keys"] = keys and Keys(**{name: key.encode() for name, key in keys.items()})
        return Endpoint(**plain)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as the address of a service ({error}); give the one that the "
            "service prints"
        ) from error


def remove_endpoint(path: Path, endpoint: Endpoint) -> None:
    """Removes a file, unless it has another endpoint by now."""
    with suppress(ConfigurationError):
        if read_endpoint(path) == endpoint:
            path.unlink(missing_ok=True)


def _own_folder() -> Path:
    """Where this user's services on this machine write their files.

    Raises:
        ConfigurationError: somebody else has made it.
    """
    folder = Path(tempfile.gettempdir()) / f"evenstep-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or not stat.S_ISDIR(about.st_mode):
        raise ConfigurationError(
            f"{folder} belongs to another user, or others may enter it; remove it, or set TMPDIR "
            "to a folder of your own"
        )
    return folder
