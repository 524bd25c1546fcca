"""`retried`: reads from storage again while it may come back.

What passes by itself is tried again, with growing pauses, until a source's patience is over: time
outs, lost connections, servers that are overloaded, a stale handle of NFS. What will not pass, such
as a missing file or permission, is an error at once.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from evenstep.errors import EvenstepError, StorageError, described

logger = logging.getLogger("evenstep")

Result = TypeVar("Result")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 8.0  # seconds
_PAUSE_LOGGED = 1.0  # a shorter pause is not worth a line
_jitter = random.Random()  # of its own: transforms may use the module's
_STATUS_PASSES = {408, 425, 429}
"""Answers of HTTP that pass, among those that blame the request."""
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_ERRNO_PASSES = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EREMOTEIO,
}


def passes(error: BaseException | None) -> bool:
    """Whether an error says that a system did not answer, whatever was asked of it."""
    return isinstance(error, (TimeoutError, ConnectionError)) or (
        isinstance(error, OSError) and error.errno in _ERRNO_PASSES
    )


def retried(
    what: str, attempt: Callable[[], Result], *, patience: float, local: bool = False
) -> Result:
    """What `attempt` returns, which is called until it raises nothing.

    Args:
        what: is read, for errors.
        patience: seconds for which it is tried again; 0 tries once.
        local: whether it is in this machine's own file systems, where few errors pass.

    Raises:
        StorageError: it fails still.
        Exception: what will not pass, as `attempt` raises it.
    """
    begin = time.monotonic()
    pause, attempts, logged = _FIRST_PAUSE, 1, False
    while True:
        try:
            return attempt()
        except EvenstepError:
            raise
        except Exception as error:  # file systems raise their own types
            if not (passes(error) if local else _may_pass(error)):
                raise
            spent = time.monotonic() - begin
            if spent >= patience:
                raise StorageError(
                    f"{what} cannot be read: tried {attempts} times in {spent:.1f} s, at last "
                    f"{described(error)}; once the storage answers again, start from the last "
                    f"saved state, or raise patience={patience:g} of Source to wait longer"
                ) from error
            if pause >= _PAUSE_LOGGED and not logged:
                logged = True
                logger.warning(
                    "%s could not be read %d times in %.1f s (%s); trying again for up to %g s",
                    *(what, attempts, spent, described(error), patience),
                )
        time.sleep(
            min(pause * _jitter.uniform(0.5, 1.5), max(begin + patience - time.monotonic(), 0))
        )
        pause, attempts = min(2 * pause, _LONGEST_PAUSE), attempts + 1


def _may_pass(error: Exception) -> bool:
    """Whether an error of a remote file system may pass. Their libraries have hundreds of types:
    what is not known to last is taken to pass."""
    if passes(error):
        return True
    if isinstance(error, _LASTING) or "Credentials" in type(error).__name__:
        return False
    status = _status(error)
    return status is None or not 400 <= status < 500 or status in _STATUS_PASSES


def _status(error: Exception) -> int | None:
    """The answer of HTTP that an error is about."""
    for found in (
        getattr(error, "status", None),
        getattr(error, "code", None),
        getattr(error, "status_code", None),
        getattr(getattr(error, "response", None), "status_code", None),
    ):
        if isinstance(found, int):
            return found
    return None
