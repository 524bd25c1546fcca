"""`ScalingThread`: keeps as many loaders in a running service as `LoaderScaling` wants."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from evenstep.errors import EvenstepError
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.sizing.loader_planning import LoaderScaling

if TYPE_CHECKING:
    from evenstep.service.backends.changing_job import ChangingJob

_LOGGER = logging.getLogger("evenstep")
_INTERVAL = 1.0  # seconds between looks
_PAUSE = 30.0  # seconds after loaders could not be changed


class ScalingThread:
    """Begins with its construction."""

    def __init__(self, scaling: LoaderScaling, job: ChangingJob) -> None:
        self._scaling, self._job = scaling, job
        self._layout = SourceLayout.planned(scaling.layout)
        self._short: tuple[str, ...] = ()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-scaling", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends, after a change that has started. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(max(pause, _INTERVAL)):
            pause = 0.0
            try:
                self._look()
            except EvenstepError as error:
                if self._closed.is_set():
                    return
                _LOGGER.warning("the loaders stay as they are: %s", error)
                pause = _PAUSE

    def _look(self) -> None:
        status = self._job.planner_status()
        step = int(status["step"])
        by_hand = bool(status["changes"])
        wanted = self._scaling.wanted(step, status["weights"], by_hand=by_hand)
        if wanted.short != self._short:
            self._short = wanted.short
            self._job.note_scaling(wanted.short, None)
            if wanted.short:
                _LOGGER.warning(
                    "loaders may not keep up from step %d on: %s need more than %d loaders of %d "
                    "workers; raise the limits, or lower what is drawn of them",
                    *(step, ", ".join(wanted.short), self._scaling.limits.most_loaders),
                    self._scaling.workers,
                )
        if wanted.layout == self._layout:
            return
        begin, before = time.monotonic(), self._layout
        self._job.use_loaders(wanted.layout)
        self._layout = wanted.layout
        change: dict[str, Any] = {
            "step": step,
            "loaders": [len(before.shares), len(wanted.layout.shares)],
            "workers": [sum(before.workers), sum(wanted.layout.workers)],
            "seconds": time.monotonic() - begin,
            "time": time.time(),
        }
        self._job.note_scaling(wanted.short, change)
        _LOGGER.info(
            "from step %d on: %d loaders (%d before) with %d workers (%d before)",
            *(step, *change["loaders"][::-1], *change["workers"][::-1]),
        )
