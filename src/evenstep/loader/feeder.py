"""Sends the sampler's indices to the batcher, from a thread of the trainer process.

The sampler runs in the process in which the user made it, so it need not be picklable, may be
infinite, and its state can be read there. Where samples are dealt on demand, the batcher says
which to send.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

from evenstep.arrays import Int64Array
from evenstep.errors import EvenstepError
from evenstep.loader.batcher.index_feed import FeederError

_BLOCK = 512  # indices in a message
_POLL_SECONDS = 0.2  # between two checks whether the trainer has left the pass


class Feeder:
    """Feeds one pass. Waits while the pipe is full."""

    def __init__(
        self,
        connection: Connection,
        serial: int,
        indices: Iterable[tuple[int, Any]],
        after: Feeder | None,
        deals: Callable[[Int64Array], Iterable[tuple[int, Any]]] | None = None,
    ) -> None:
        """
        Args:
            indices: arrival numbers and dataset indices.
            after: the feeder of the pass before, which must have sent its last block first.
            deals: `indices` for entries of the ranks' stream that are dealt to this rank on demand;
                None where `indices` are all.
        """
        self._connection = connection
        self._serial = serial
        self._indices = indices
        self._deals = deals
        self._after = after
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-feeder", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stops feeding: the pass was abandoned."""
        self._left.set()

    def _run(self) -> None:
        if self._after is not None:
            self._after._thread.join()
            self._after = None
        try:
            blocks = self._blocks()
            while not self._left.is_set() and (block := next(blocks, None)) is not None:
                self._connection.send((self._serial, block))
                if isinstance(block, Exception):
                    return
            self._connection.send((self._serial, None))
        except (OSError, ValueError):
            return  # the batcher is gone; the iterator that waits for its steps will report it

    def _blocks(self) -> Iterator[list[tuple[int, Any]] | Exception]:
        """Blocks of indices, with an empty one after each deal; last the error that the sampler
        raised, if any."""
        try:
            yield from _in_blocks(self._indices)
            if self._deals is not None:
                yield []
                while (entries := self._next_deal()) is not None:
                    yield from _in_blocks(self._deals(entries))
                    yield []
        except EvenstepError as error:
            yield error
        except Exception as error:
            yield FeederError(f"the sampler raised {type(error).__name__}: {error}")

    def _next_deal(self) -> Int64Array | None:
        """Waits for the next deal of this pass; None if there will be none."""
        with contextlib.suppress(EOFError, OSError):  # the batcher is gone
            while not self._left.is_set():
                if self._connection.poll(_POLL_SECONDS):
                    serial, entries = self._connection.recv()
                    if serial == self._serial:
                        return cast("Int64Array | None", entries)
        return None


def _in_blocks(indices: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    iterator = iter(indices)
    while block := list(itertools.islice(iterator, _BLOCK)):
        yield block
