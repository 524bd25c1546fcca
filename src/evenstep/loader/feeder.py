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
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.arguments import check_index
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.first_rows import FirstRows

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
        first_rows: Callable[[list[Any]], FirstRows | None] = lambda indices: None,
    ) -> None:
        """
        Args:
            indices: arrival numbers and dataset indices.
            after: the feeder of the pass before, which must have sent its last block first.
            deals: `indices` for entries of the ranks' stream that are dealt to this rank on demand;
                None where `indices` are all.
            first_rows: see `EpochStart`.
        """
        self._connection = connection
        self._serial = serial
        self._indices = indices
        self._deals = deals
        # One of another batcher has nothing to do with this one, and may hang.
        self._after = after if after is not None and after._connection is connection else None
        self._first_rows = first_rows
        self._left = threading.Event()
        self._unsent: BaseException | None = None
        """Why the batcher could not be sent the end of the indices."""
        self._thread = GuardedThread(self._run, name="feeder")
        self._thread.start()

    def leave(self) -> None:
        """Stops feeding: the pass was abandoned."""
        self._left.set()

    @property
    def failure(self) -> BaseException | None:
        """Why no more indices will come, if the batcher could not be sent that."""
        return self._unsent or self._thread.failure

    def _run(self) -> None:
        if self._after is not None:
            self._after._thread.join()
            self._after = None
        blocks, told = self._blocks(), False
        while not self._left.is_set():
            block: list[tuple[int, Any]] | EvenstepError | None
            try:
                block = next(blocks, None)
                for _, index in block or ():
                    check_index(index)
            except EvenstepError as error:
                block = error
            except BaseException as error:
                block = SampleError(f"the sampler raised {described(error)}")
            if not isinstance(block, list):
                break
            try:
                if not told and (first := self._first_rows([index for _, index in block])):
                    self._send(first)
                told = True
                self._send(block)
            except OSError:  # the batcher is gone
                raise
            except BaseException as error:
                block = SampleError(f"indices of the sampler cannot be sent: {described(error)}")
                break
        else:
            block = None
        try:
            self._send(block)
        except BaseException as error:
            self._unsent = error
        while self._deals is not None and self._next_deal(until_left=False) is not None:
            pass  # the batcher may ask for more than the pipe holds, and would hang

    def _send(self, block: Any) -> None:
        self._connection.send((self._serial, block))

    def _blocks(self) -> Iterator[list[tuple[int, Any]]]:
        """Blocks of indices, with an empty one after each deal."""
        yield from _in_blocks(self._indices)
        if self._deals is not None:
            yield []
            while (entries := self._next_deal()) is not None:
                yield from _in_blocks(self._deals(entries))
                yield []

    def _next_deal(self, *, until_left: bool = True) -> Int64Array | None:
        """Waits for the next deal of this pass; None if there will be none."""
        with contextlib.suppress(EOFError, OSError):  # the batcher is gone
            while not (until_left and self._left.is_set()):
                if self._connection.poll(_POLL_SECONDS):
                    serial, entries = self._connection.recv()
                    if serial == self._serial:
                        if entries is None:
                            self._deals = None
                        return cast("Int64Array | None", entries)
        return None


def _in_blocks(indices: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    iterator = iter(indices)
    while block := list(itertools.islice(iterator, _BLOCK)):
        yield block
