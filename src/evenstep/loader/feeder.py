"""Sends the sampler's indices to the batcher, from a thread of the trainer process.

The sampler runs in the process in which the user made it, so it need not be picklable, may be
infinite, and its state can be read there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.loader.batcher.index_feed import FeederError

_BLOCK = 512  # indices in a message


class Feeder:
    """Feeds one pass. Waits while the pipe is full."""

    def __init__(
        self,
        connection: Connection,
        serial: int,
        indices: Iterable[tuple[int, Any]],
        after: Feeder | None,
    ) -> None:
        """
        Args:
            indices: arrival numbers and dataset indices.
            after: the feeder of the pass before, which must have sent its last block first.
        """
        self._connection = connection
        self._serial = serial
        self._indices = indices
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
            iterator = self._blocks()
            while not self._left.is_set():
                block = next(iterator)
                self._connection.send((self._serial, block))
                if not isinstance(block, list):
                    return
            self._connection.send((self._serial, None))
        except (OSError, ValueError):
            return  # the batcher is gone; the iterator that waits for its steps will report it

    def _blocks(self) -> Iterator[list[tuple[int, Any]] | Exception | None]:
        """Blocks of indices, then the error that the sampler raised, if any, then None."""
        try:
            iterator = iter(self._indices)
            while block := list(itertools.islice(iterator, _BLOCK)):
                yield block
        except EvenstepError as error:
            yield error
        except Exception as error:
            yield FeederError(f"the sampler raised {type(error).__name__}: {error}")
        yield None
