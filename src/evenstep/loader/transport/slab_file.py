"""A slab's memory as an anonymous file, which a writer allocates and readers map."""

from __future__ import annotations

import errno
import functools
import io
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.errors import LoaderDiedError
from evenstep.processes import signal_that_killed

GROWTH = 1.125  # size of a new slab over what is asked for, so that larger objects still fit
_PAGE = mmap.PAGESIZE
_KEPT = "A loop that keeps large tensors of its batches should keep their clone()"

Bytes = npt.NDArray[np.uint8]


def available() -> bool:
    """Whether this system has memory without a name, which another process can open."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class SlabFile:
    """Where readers find a slab. Its path lasts as long as its writer lives, so it is opened while
    the message that names it is unpickled, not when the message is processed: the writer, a worker
    with nothing left to do, may have exited by then. What goes wrong is raised later, as torch
    makes temporary files to find out why a message could not be unpickled."""

    def __init__(self, writer: int, fd: int, *, opened: bool = False) -> None:
        """
        Args:
            writer: process id.
            fd: the slab's file descriptor in that process.
        """
        self._writer, self._fd = writer, fd
        self._file: io.FileIO | None = None
        self._error: OSError | None = None
        if opened:
            try:
                self._file = self._open()
            except OSError as error:
                self._error = error

    @property
    def path(self) -> str:
        return f"/proc/{self._writer}/fd/{self._fd}"

    def _open(self) -> io.FileIO:
        return io.FileIO(self.path, "r+")

    def __reduce__(self) -> Any:
        return functools.partial(SlabFile, opened=True), (self._writer, self._fd)

    def map(self) -> Bytes:
        """
        Raises:
            ProcessLookupError: the writer has died.
            LoaderDiedError: there is no more memory, or no more files may be opened.
        """
        try:
            if self._error is not None:
                raise self._error
            opened = self._file or self._open()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise ProcessLookupError(
                f"worker process {self._writer} died{signal_that_killed(self._writer)}, and with "
                "it samples that it had prepared; if the system ran out of memory, lower "
                "buffer_size, prefetch or num_workers"
            ) from error
        except OSError as error:
            raise out_of_memory_error(
                error, "to open a slab that another process has filled"
            ) from error
        with opened as file:
            size = os.fstat(file.fileno()).st_size
            try:
                return _map(file.fileno(), size)
            except (OSError, RuntimeError) as error:
                raise out_of_memory_error(error, f"to map a slab of {size:,} bytes") from error

    def close(self) -> None:
        """Closes a file that will not be mapped."""
        if self._file is not None:
            self._file.close()


def allocate(size: int) -> tuple[Bytes, int]:
    """Reserved memory of at least `size` bytes, and its file descriptor."""
    room = int(size * GROWTH)
    room += -room % _PAGE
    fd = os.memfd_create("evenstep")
    try:
        # Otherwise pages would be allocated as they are filled, and running out then is a SIGBUS.
        os.posix_fallocate(fd, 0, room)
        return _map(fd, room), fd
    except BaseException:
        os.close(fd)
        raise


def _map(fd: int, size: int) -> Bytes:
    # Python's own mmap keeps a second descriptor for as long as it lives, and a job's limit of open
    # files is soon reached.
    path = f"/proc/self/fd/{fd}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8).numpy()


def out_of_memory_error(error: OSError | RuntimeError, asked: str) -> LoaderDiedError:
    """An error that says what was asked for and what to do, in place of one that says neither."""
    why = (isinstance(error, OSError) and error.strerror) or str(error)
    begin = f"shared memory ran out: process {os.getpid()} asked {asked}"
    if os.strerror(errno.EMFILE) in why:
        import resource  # not every system has it

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return LoaderDiedError(
            f"{begin}, and each slab is an open file, of which {limit:,} are allowed; raise that "
            f"(ulimit -n) or chunk_size, or lower buffer_size. {_KEPT}"
        )
    return LoaderDiedError(
        f"{begin} ({why}); lower buffer_size, prefetch or num_workers, or give the job more "
        f"memory. {_KEPT}"
    )
