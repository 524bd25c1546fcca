"""`ScalingThread`: keeps as many loaders in a running service as `LoaderScaling` wants."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.sizing.loader_planning import LoaderScaling

_LOGGER = logging.getLogger("evenstep")
_INTERVAL = 1.0  # seconds between looks
_PAUSE = 30.0  # seconds after loaders could not be changed


class ScalingThread:
    """Begins with its construction."""

    def __init__(
        self,
        scaling: LoaderScaling,
        planner_status: Callable[[], Mapping[str, Any]],
        use_loaders: Callable[[SourceLayout], None],
        note: Callable[[tuple[str, ...], Mapping[str, Any] | None], None],
    ) -> None:
        """
        Args:
            planner_status: see `Planner.status`.
            use_loaders: see `ChangingJob.use_loaders`.
            note: called with `WantedLoaders.short` when that has changed, and after each change of
                loaders also with the change, JSON-able: loaders and workers before and after, at
                which step, in how many seconds.
        """
        self._scaling, self._planner_status = scaling, planner_status
        self._use_loaders, self._note = use_loaders, note
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
        status = self._planner_status()
        step = int(status["step"])
        by_hand = bool(status["changes"])
        wanted = self._scaling.wanted(step, status["weights"], by_hand=by_hand)
        if wanted.short != self._short:
            self._short = wanted.short
            self._note(wanted.short, None)
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
        self._use_loaders(wanted.layout)
        self._layout = wanted.layout
        change: dict[str, Any] = {
            "step": step,
            "loaders": [len(before.shares), len(wanted.layout.shares)],
            "workers": [sum(before.workers), sum(wanted.layout.workers)],
            "seconds": time.monotonic() - begin,
            "time": time.time(),
        }
        self._note(wanted.short, change)
        _LOGGER.info(
            "from step %d on: %d loaders (%d before) with %d workers (%d before)",
            *(step, *change["loaders"][::-1], *change["workers"][::-1]),
        )
