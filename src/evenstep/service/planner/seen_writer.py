"""`SeenWriter`: records what is planned in the files of `seen`, in a thread of its own.

What only observes a run must not end it: steps that cannot be written are a warning, and are tried
again with the next ones. It keeps up to `_MOST` of them, and then loses the oldest.
"""

from __future__ import annotations

import logging
import threading
from functools import cached_property

from evenstep.errors import described
from evenstep.service.planner.seen import SeenFile, SeenStep, files_of, parquet_of
from evenstep.service.planner.store.run_store import RunPlace
from evenstep.service.planner.store.store_files import UrlFolder, url_folder
from evenstep.strategy import LoadingPlan

STEPS = 64
"""That are written together. A store has the states to make twice as many again."""
SECONDS = 300.0
"""After which fewer are written, too."""
_PAUSE = 1.0  # seconds from one file to the next
_AFTER_FAILURE = 10.0
_CLOSE = 8.0  # seconds in which the last file is written
_MOST = 8 * STEPS
_LOGGER = logging.getLogger("evenstep")


class SeenWriter:
    """See the module docstring."""

    def __init__(self, place: RunPlace) -> None:
        """
        Args:
            place: of `begin_run`.
        """
        self.run = place.run
        self._url = place.url
        self._changed = threading.Condition()
        self._steps: dict[int, SeenStep] = {}
        """By number, without gaps, those that are not written."""
        self._next: int | None = None
        """The step after the last one that was added."""
        self._soon = self._closed = self._fails = False
        self._number = 0
        """Of the last file; 0 is not known."""
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="seen-writer", daemon=True)
        self._thread.start()

    def add(self, plan: LoadingPlan) -> None:
        """Queues a plan, in place of all that were made of this step and later ones."""
        made = SeenStep.of(plan)
        with self._changed:
            again = self._next is not None and plan.step < self._next
            for step in [step for step in self._steps if step >= plan.step]:
                del self._steps[step]
            self._steps[plan.step] = made
            self._next = plan.step + 1
            if len(self._steps) > _MOST:
                del self._steps[next(iter(self._steps))]
                self._lost += 1
            if again:  # a file may have the earlier plan
                self._soon = True
            if again or len(self._steps) >= STEPS:
                self._changed.notify()

    def write_soon(self) -> None:
        """Has what is there written, so that the record of a run that is resumed here is whole."""
        with self._changed:
            self._soon = True
            self._changed.notify()

    def last_step(self) -> int | None:
        """The last step that is in a file of the run; None if none is, or it is not known."""
        try:
            return max((file.last for file in files_of(self._folder, self.run)), default=None)
        except Exception as error:
            _LOGGER.warning("what was seen cannot be listed: %s", described(error))
            return None

    def close(self) -> None:
        """Writes what is there, if the storage answers, and ends. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE)
        if self._thread.is_alive():
            _LOGGER.warning(
                "what was seen in the last %d steps is not written: %s has not answered for %g s",
                *(len(self._steps), self._url, _CLOSE),
            )

    @cached_property
    def _folder(self) -> UrlFolder:
        return url_folder(self._url).folder(self.run)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, timeout=SECONDS)
                self._soon = False
                steps, last = list(self._steps.values()), self._closed
            if steps:
                self._write(steps)
            if last:
                return
            with self._changed:
                pause = _AFTER_FAILURE if self._fails else _PAUSE
                self._changed.wait_for(lambda: self._closed, timeout=pause)

    def _is_due(self) -> bool:
        return self._closed or self._soon or len(self._steps) >= STEPS

    def _write(self, steps: list[SeenStep]) -> None:
        try:
            if not self._number:
                before = files_of(self._folder, self.run)
                self._number = max((file.number for file in before), default=0)
            self._number += 1  # no name is used twice: a write that failed may be carried out later
            file = SeenFile(self.run, self._number, steps[0].step, steps[-1].step)
            self._folder.put(file.name, parquet_of(steps))
        except Exception as error:  # whatever it is, the job goes on
            if not self._fails:
                _LOGGER.warning(
                    "what was seen cannot be written (%s); the job goes on, and it is tried again",
                    described(error),
                )
            self._fails = True
            return
        with self._changed:
            for each in steps:
                if self._steps.get(each.step) is each:
                    del self._steps[each.step]
            lost, self._lost = self._lost, 0
        if self._fails:
            _LOGGER.warning("what was seen is written again; %d steps are missing", lost)
        self._fails = False
