"""Without /dev/shm, as in some containers, workers cannot start: an error on every rank says so.

Batches and samples do not travel there, but the semaphores of Python's worker processes do. Rank 1
has file systems of its own, which takes root's rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FORK, THREADS, loader_over, one_pass
from ranks import Rank, run

from documents import Documents

COUNT = 60
NEW_MOUNTS = 0x20000
DEVICES = ("null", "zero", "random", "urandom")


def tell(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def no_rights() -> str:
    """Why file systems cannot be mounted here; empty if they can."""
    try:
        tell("unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no file system can be mounted: {getattr(error, 'stderr', None) or error!r}"
    return ""


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    tell("mount", "-t", "tmpfs", "-o", "ro", "none", "/dev/shm")
    yield
    tell("umount", "-l", "/dev/shm")


@contextlib.contextmanager
def full() -> Iterator[None]:
    tell("mount", "-t", "tmpfs", "-o", "size=4k", "none", "/dev/shm")
    Path("/dev/shm/others").write_bytes(bytes(4096))
    yield
    tell("umount", "-l", "/dev/shm")


@contextlib.contextmanager
def missing() -> Iterator[None]:
    folder = Path(tempfile.mkdtemp())
    tell("mount", "-t", "tmpfs", "none", str(folder))
    for name in DEVICES:
        (folder / name).touch()
        tell("mount", "--bind", f"/dev/{name}", str(folder / name))
    tell("mount", "--move", str(folder), "/dev")
    folder.rmdir()
    assert not os.path.exists("/dev/shm")
    yield
    tell("umount", "-R", "-l", "/dev")


def own_file_systems(rank: Rank) -> None:
    if rank.rank == 1:
        if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "unshare")
        tell("mount", "--make-rprivate", "/")


def go_through(rank: Rank) -> list[Any]:
    """Samples, or the error, without and with workers, in each case."""
    outcomes = []
    for case in (read_only, full, missing, contextlib.nullcontext):
        with case() if rank.rank == 1 else contextlib.nullcontext():
            passes = [one_pass(loader_over(Documents(COUNT), **how)) for how in (THREADS, FORK)]
            outcomes.append([each.error or each.samples for each in passes])
    return outcomes


@pytest.mark.slow
def test_workers_without_dev_shm_are_an_error_that_says_so_on_every_rank(tmp_path: Path) -> None:
    if why := no_rights():
        pytest.skip(why)
    other, own = run(go_through, 2, folder=tmp_path, prepare=own_file_systems)
    *without, with_it = zip(own, other, strict=True)
    said = "the workers of rank 1 could not be started ("
    for (mine, failed), (theirs, heard) in without:
        assert mine + theirs == COUNT, "num_workers=0 needs no /dev/shm"
        assert failed.startswith(f"LoaderDiedError: {said}"), failed
        assert "semaphores in /dev/shm, which is missing, full or read-only" in failed
        assert heard.startswith(f"PeerError: rank 1 failed: LoaderDiedError: {said}"), heard
    assert [sum(each) for each in zip(*with_it, strict=True)] == [COUNT, COUNT]
