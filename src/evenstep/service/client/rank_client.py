"""`RankClient`: the micro-batches of one trainer rank, step by step.

It requests `prefetch` steps ahead of the one being trained on, and no more until that one is taken:
so memory is bounded, and a slow trainer slows down what is prepared for it. The steps of all
clients end together, where the mixture ends.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.run_log import RunLog
from evenstep.service.client.service_step import ServiceStep, StepDelivery
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.messages import Handle, Reply, call
from evenstep.service.planner.planner import Planner
from evenstep.strategy.mesh import ClientPlaceTree, Place

logger = logging.getLogger("evenstep")


class RankClient:
    """Iterates over ``(micro_batches, step)``. Use it in one thread."""

    def __init__(
        self,
        tree: ClientPlaceTree,
        rank: int,
        constructor: Handle,
        planner: Handle,
        *,
        prefetch: int,
        step: int = 0,
    ) -> None:
        """
        Args:
            tree: the trainer's mesh.
            rank: global rank.
            constructor: the one that serves the rank's data-parallel group.
            prefetch: steps requested beyond the one being trained on; see `ServiceMemory`.
            step: the first step.

        Raises:
            ConfigurationError: the mesh has no such rank.
        """
        self.place: Place = tree.place(rank)
        self.rank = rank
        self._tree, self._prefetch = tree, prefetch
        self._constructor, self._planner = constructor, planner
        self._next = step
        self._requested: deque[Reply[StepDelivery]] = deque()
        self._last: int | None = None
        self._ended = self._closed = False
        self._limit = math.inf
        """The first step that must not be requested yet."""
        self._run_log: RunLog | None = None
        self.wait_seconds = 0.0
        """Seconds waited, over all steps."""

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._next

    @property
    def fetches(self) -> bool:
        """Whether this rank fetches anything in the step that comes next. False if a peer
        broadcasts to it or its pipeline stage needs no data, and no subplan has data for it; also
        False after the end.

        Raises:
            EvenstepError: the step could not be planned.
        """
        return call(self._constructor, DataConstructor.fetches, self._next, self.rank)

    def log_steps(self, path: str | os.PathLike[str]) -> None:
        """Writes a line for each step that this rank takes from now on: how long it took, and what
        all ranks held. ``evenstep report`` shows the file.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._run_log = RunLog(path, {"run": "service", "ranks": len(self._tree)})

    def __iter__(self) -> Iterator[tuple[list[Any], ServiceStep]]:
        return self

    def __next__(self) -> tuple[list[Any], ServiceStep]:
        """
        Raises:
            StopIteration: the mixture has ended.
            ConfigurationError: this rank fetches nothing, or the client is closed.
            EvenstepError: the step could not be planned, read or built.
        """
        if self._closed:
            raise ConfigurationError(f"the client of rank {self.rank} is closed; make a new one")
        if self._ended:
            raise StopIteration
        if self._run_log is not None:
            self._run_log.note_request()
        begin = time.perf_counter()
        self._request_steps()
        try:
            delivery: StepDelivery = self._requested.popleft().result()
            if delivery.held:
                logger.warning("rank %d waits: %s", self.rank, delivery.held)
            while delivery.held:
                delivery = self._request(self._next).result()
        except Exception:
            self._requested.clear()  # the steps after a failed one cannot come either
            raise
        waited = time.perf_counter() - begin
        if delivery.ended:
            self._ended = True
            self._requested.clear()
            call(self._constructor, DataConstructor.release, self.rank, self._next)
            raise StopIteration
        if delivery.about is None:
            self._requested.clear()
            raise ConfigurationError(self._nothing_to_fetch(delivery))
        self._last, self._next = self._next, self._next + 1
        self._request_steps()
        self.wait_seconds += waited
        if self._run_log is not None:
            self._run_log.handed_out(delivery.about.to_line())
        return delivery.micro_batches, replace(delivery.about, wait_seconds=waited)

    def report(self, **signals: Any) -> None:
        """Reports what was measured in the step taken last, such as
        ``loss_by_source={"web": 2.1}``, for schedules that follow it. If every rank reports before
        it takes its next step, every run draws the same samples; see
        `evenstep.service.planner.trainer_reports`.

        Raises:
            ConfigurationError: no step was taken yet, or a signal is not made of plain numbers.
        """
        if self._last is None:
            raise ConfigurationError(
                f"rank {self.rank} reports before its first step; report after taking a step"
            )
        call(self._planner, Planner.report, self._last, self.rank, signals)

    def state_dict(self) -> Mapping[str, Any]:
        """The state from which a service resumes at the step that comes next here: JSON-able. It
        is the same on all ranks that have taken the same steps."""
        return call(self._planner, Planner.state_dict, self._next, taken=True)

    def common_state(self) -> Mapping[str, Any]:
        """The state to save in a training loop: as `state_dict`, the same on all ranks. Call it on
        every rank that takes steps, after the same step: it waits for all of them. With
        ``backend="local"`` it does not wait.

        Raises:
            ConfigurationError: ranks have called it at different steps, or one has taken more steps
                without calling it. All that wait get the error, which names each rank's step.
            MeshChangedError: the mesh has ended where it began, and gets no step.
        """
        return self.state_dict()

    def close(self) -> None:
        """Stops requesting steps, and drops those requested. Idempotent."""
        self._requested.clear()
        self._closed = True

    def __enter__(self) -> RankClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_steps(self) -> None:
        while len(self._requested) <= self._prefetch:
            step = self._next + len(self._requested)
            if step >= self._limit:
                return
            self._requested.append(self._request(step))

    def _request(self, step: int) -> Reply[StepDelivery]:
        return self._constructor.send(DataConstructor.deliver, step, self.rank, self._next)

    def _nothing_to_fetch(self, delivery: StepDelivery) -> str:
        text = f"rank {self.rank} ({self.place}) fetches nothing in step {delivery.step}"
        why, peer = "its stage of the pipeline needs no data", delivery.fetched_by
        if peer is not None and peer >= 0:
            why = f"rank {peer} ({self._tree.place(peer)}) fetches for it and broadcasts"
        return f"{text}: {why}; do not iterate where client.fetches is False"
