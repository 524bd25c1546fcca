"""Files that say where a service is reached: for trainers' processes of the same user.

Such a file has the job's keys, so only its owner may read it. Copied to another host, it lets a
trainer join from there.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.service.transport.endpoint import Endpoint, Keys

SUFFIX = ".evenstep"


def path_of(name: str) -> Path:
    """The file of a job of that name on this machine."""
    return _own_folder() / f"{name}{SUFFIX}"


def write_endpoint(path: Path, endpoint: Endpoint) -> None:
    plain = asdict(endpoint)
    if endpoint.keys is not None:
        plain["keys"] = {name: key.decode() for name, key in plain["keys"].items()}
    own = Path(f"{path}.{os.getpid()}")
    own.touch(mode=0o600)
    own.write_text(json.dumps(plain) + "\n")
    own.replace(path)


def read_endpoint(path: Path) -> Endpoint:
    """
    Raises:
        ConfigurationError: there is no such file, others may write it, or it is none of a service.
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
