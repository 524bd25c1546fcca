"""Every exception that evenstep raises on purpose; all are an `EvenstepError`.

    ConfigurationError   an argument is wrong: raised where the object is built
    WrongTypeError       a ConfigurationError: an argument is of a wrong type, or has a wrong name
    SampleError          a sample cannot be used: raised on the rank that reads it
    StorageError         a SampleError: the file that holds it cannot be read, or has changed
    CollateError         a batch cannot be made, or is not what was planned
    MismatchError        ranks, or a state and its loader, were built differently
    MeshChangedError     the mesh of a running job has changed: join it again
    SupersededError      another planner has taken over a run, and this one was only slow
    LoaderDiedError      a worker, a batcher or an actor of the service died
    PeerError            another rank failed or left: raised on all others
    DamagedMessageError  a PeerError: what another rank sent cannot be what it meant to send
    InvariantError       a bug in evenstep or in a policy

Each message names the value that was wrong, the limit it broke and what to do about it. An error
on one rank reaches every other rank as a `PeerError`, so no rank is left waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\")\],;]*")


def without_queries(text: str) -> str:
    """Addresses of the web without what follows a question mark: a signature, say, that lets
    anybody read a file."""
    return _QUERY.sub(r"\1", text)


class EvenstepError(Exception):
    """Base class of all errors raised by evenstep."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(without_queries(a) if isinstance(a, str) else a for a in arguments))


class ConfigurationError(EvenstepError, ValueError):
    """An argument is wrong. Raised where the object is built, before anything runs."""


class WrongTypeError(ConfigurationError, TypeError):
    """An argument is of a wrong type, or there is none of that name."""


class SampleError(EvenstepError):
    """A sample could not be used: the dataset raised, or its length is zero, over the limit or
    cannot be determined."""


class TooLongError(SampleError):
    """A sample has more tokens than a group may have, or than there is memory for."""


class StorageError(SampleError):
    """A file of a source cannot be read: its storage did not answer for longer than the source's
    patience, the file or the permission is missing, or it changed under way. No sample is to
    blame."""


class CollateError(EvenstepError):
    """The collate function raised, or made a batch that contradicts what was measured."""


class MismatchError(EvenstepError):
    """Ranks were built with different policies, seeds, dataset sizes or options."""


class PeerError(EvenstepError):
    """Another rank failed, left the epoch early or died."""


class DamagedMessageError(PeerError):
    """A message of a rank did not arrive as it was sent, or says what cannot be. As the copy of one
    rank alone may be damaged, that rank tells the others."""


class MeshChangedError(EvenstepError):
    """The mesh of a running job has changed, and this client is of the mesh before."""


class SupersededError(EvenstepError):
    """Another planner has taken over this one's run: it was thought dead, and was only slow."""


class LoaderDiedError(EvenstepError, RuntimeError):
    """A process of this rank's loader (a worker or the batcher) died, or a call in it took longer
    than ``timeout``."""


class InvariantError(EvenstepError, AssertionError):
    """evenstep's own bookkeeping is wrong, such as a sample lost or doubled. Please report it."""


def installing(extra: str) -> str:
    """The remedy where a package of one of evenstep's extras is missing; no index has evenstep."""
    return f"pip install '.[{extra}]' in a clone of evenstep's repository"


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Where an import of the block fails, says what needs which package, and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{what}: {installing(extra)}") from error


_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What code that reads values raises if they are not what it wrote."""


@contextmanager
def parsing(
    what: object, *, remedy: str, error: type[EvenstepError] = ConfigurationError
) -> Iterator[None]:
    """Turns what the block raises over damaged values into one clear error. A `MismatchError` says
    what is wrong by itself, and passes.

    Args:
        what: the thing that is read, such as a path.
        remedy: what to do about it, for the message.
        error: its class.
    """
    try:
        yield
    except MismatchError:
        raise
    except EvenstepError as cause:
        raise error(f"{what} cannot be read: {cause}; {remedy}") from cause
    except _DAMAGE as cause:
        raise error(f"{what} is damaged: {type(cause).__name__}: {cause}; {remedy}") from cause


OF_CODE = (ImportError, NameError, SyntaxError)
"""What code raises for any sample, where a package is missing, say. None is left out for it."""


def described(error: BaseException) -> str:
    """What was raised, for the message of another error: its class and text.

    The text is the user's, and may hold what cannot be sent, or fail to be made.
    """
    name = type(error).__name__
    try:
        text = str(error).encode(errors="backslashreplace").decode()
    except BaseException as another:
        return f"{name}, whose text raised {type(another).__name__}"
    return f"{name}: {text}" if text else name
