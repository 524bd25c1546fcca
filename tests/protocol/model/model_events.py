"""What may happen to the ranks of the model, and what is seen of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from evenstep.protocol.wire import abort_message

FAULTS = ("aborts", "leaves", "dies", "is cut off", "misreads")
"""aborts: a sample or its worker fails, and the rank says so in place of its next message.
leaves: the trainer leaves the pass. dies: as by SIGKILL. is cut off: the exchange fails for this
rank, because another died or a connection was reset, though others may still complete it.
misreads: its copy of another's message is damaged, so that it aborts in the next exchange."""
SUDDEN = ("dies", "is cut off", "misreads")


class Violation(Exception):
    """An invariant does not hold."""


class Message(NamedTuple):
    data: bytes
    intact: bool = True
    """False for an abort and for the nothing that a rank sends which is gone."""


class Seen(NamedTuple):
    """A state of a rank, pickled, and what is seen of it."""

    pickled: bytes
    heard: int
    """Exchanges completed."""
    count: int
    """Messages sent."""
    sent: tuple[Message, ...]
    """The last two; another rank may not have heard the one before the last."""
    released: int
    """Steps of the epoch that have been handed out."""
    gone: str = ""
    waits: bool = False
    """For the other ranks' messages."""
    trainable: int = 0
    """Steps of the epoch whose samples are there."""
    actions: tuple[tuple[str, Any], ...] = ()


NOTHING = Message(b"", intact=False)
ABORT = Message(abort_message("sample 3"), intact=False)
