"""Folders that jobs write to: /dev/shm, by the semaphores of Python's processes, and TMPDIR."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

from evenstep.errors import described
from evenstep.tools.doctor.finding import Finding

_SOCKET_PATH = 107  # bytes that the path of a socket may have
_OF_FORKSERVER = len("/pymp-12345678/listener-12345678")
_OF_RAY = len("/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
_SOME_SPACE = 1 << 30


def shared_memory() -> Iterator[Finding]:
    """Makes what every queue of worker processes needs. Batches do not travel in /dev/shm."""
    check = "shared memory"
    try:
        fork = "fork" in multiprocessing.get_all_start_methods()
        multiprocessing.get_context("fork" if fork else None).Lock()  # leaves no name behind
    except (OSError, ImportError) as error:
        yield Finding(
            check=check,
            found=f"no worker process can start: a semaphore needs /dev/shm ({described(error)})",
            remedy="mount a tmpfs there (docker run --shm-size=1g), or use num_workers=0",
            breaks=True,
        )
        return
    yield Finding(check=check, found="semaphores can be made")


def temporary_folder() -> Iterator[Finding]:
    check, asked = "TMPDIR", os.environ.get("TMPDIR")
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        yield Finding(
            check=check,
            found=f"no temporary file can be written ({described(error)})",
            remedy="set TMPDIR to a folder on this host that you may write, with some GiB left",
            breaks=True,
        )
        return
    folder = tempfile.gettempdir()
    if asked and os.path.realpath(asked) != os.path.realpath(folder):
        yield Finding(
            check=check,
            found=f"{asked} cannot be written, so {folder} is used",
            remedy="create the folder, or let this user write it",
        )
    free = shutil.disk_usage(folder).free
    if free < _SOME_SPACE:
        yield Finding(
            check=check,
            found=f"{folder} has {free >> 20:,} MiB left: row groups of remote Parquet files, and "
            "a service's states without store=, go there",
            remedy="set TMPDIR to a folder of this host with some GiB left",
        )
    yield from _long_paths(folder)
    yield Finding(check=check, found=f"{folder}, {free >> 30:,} GiB left")


def _long_paths(folder: str) -> Iterator[Finding]:
    """Sockets in the folder, and who makes them."""
    if sys.platform == "win32":
        return
    base = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    of_ray = _SOCKET_PATH - _OF_RAY
    if find_spec("ray") and (length := len(os.fsencode(base))) > of_ray:
        yield Finding(
            check="Ray's folder",
            found=f"Ray cannot start: its sockets allow {of_ray} characters; {base} has {length}",
            remedy="set RAY_TMPDIR to a short path, such as /tmp",
        )
    of_forkserver = _SOCKET_PATH - _OF_FORKSERVER
    if (length := len(os.fsencode(folder))) > of_forkserver:
        yield Finding(
            check="TMPDIR",
            found=f"multiprocessing_context='forkserver' fails: its sockets allow {of_forkserver} "
            f"characters, and {folder} has {length}",
            remedy="set TMPDIR to a shorter path, or leave out multiprocessing_context",
        )
