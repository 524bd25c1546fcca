"""`StateWriter`: writes the planner's states to a store in a thread, so that no step waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from evenstep.errors import EvenstepError, SupersededError
from evenstep.service.planner.planner_state import PlannerState
from evenstep.service.planner.store.run_store import RunStore

_INTERVAL = 0.25  # seconds from one state to the next
_LOGGER = logging.getLogger("evenstep")


class StateWriter:
    """If states arrive faster than they are written, only the newest is written, and those that the
    store never removes. A state that cannot be written is logged and skipped."""

    def __init__(
        self, store: RunStore, written_out: Callable[[PlannerState], Mapping[str, Any]]
    ) -> None:
        """
        Args:
            written_out: from a state to what the store is given.
        """
        self._store, self._written_out = store, written_out
        self._changed = threading.Condition()
        self._newest: PlannerState | None = None
        self._lasting: list[PlannerState] = []
        self._closed = False
        self._superseded: SupersededError | None = None
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def add(self, state: PlannerState) -> None:
        """Queues a state to be written.

        Raises:
            SupersededError: another planner has taken over.
        """
        if self._superseded is not None:
            raise self._superseded.with_traceback(None)
        with self._changed:
            if self._store.keeps(state.step):
                self._lasting.append(state)
            else:
                self._newest = state
            self._changed.notify()

    def close(self) -> None:
        """Writes the states that were added, and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._superseded is None:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._newest or self._lasting)
                states = [*self._lasting, *([self._newest] if self._newest else [])]
                self._lasting, self._newest = [], None
                if not states:
                    return
            began = time.monotonic()
            for state in states:
                self._write(state)
            with self._changed:
                passed = time.monotonic() - began
                self._changed.wait_for(lambda: self._closed, timeout=_INTERVAL - passed)

    def _write(self, state: PlannerState) -> None:
        try:
            self._store.save_state(state.step, self._written_out(state))
        except SupersededError as error:
            self._superseded = error
        except EvenstepError as error:
            _LOGGER.warning("the state before step %d is not kept: %s", state.step, error)
