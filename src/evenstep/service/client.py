"""`RankClient`: the micro-batches of one trainer rank, step by step.

It asks its constructor for a few steps beyond the one at hand, `Job.prefetch`, and for no more
until that one is taken: so memory is bounded, and a trainer that is slow slows down what is
prepared for it. The steps of all clients end together, where the mixture ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.handles import Handle, Reply, call
from evenstep.service.job import Job
from evenstep.service.service_step import ServiceStep, StepDelivery
from evenstep.strategy.mesh import Place

__all__ = ["RankClient"]


class RankClient:
    """Iterates over ``(micro_batches, step)``. Use it in one thread."""

    def __init__(
        self, job: Job, rank: int, constructor: Handle, planner: Handle, *, step: int = 0
    ) -> None:
        """
        Args:
            rank: global rank.
            constructor: of its data-parallel group.
            step: that comes first.

        Raises:
            ConfigurationError: the mesh has no such rank.
        """
        self.place: Place = job.tree.place(rank)
        self.rank = rank
        self._job, self._constructor, self._planner = job, constructor, planner
        self._next = step
        self._asked: deque[Reply] = deque()
        self._last: int | None = None
        self._ended = False
        self._closed = False
        self.wait_seconds = 0.0
        """Waited for, over all steps."""

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._next

    @property
    def fetches(self) -> bool:
        """Whether this rank asks for anything in the step that comes next: False where a peer
        broadcasts to it, or where its stage of the pipeline needs no data, and there is no subplan
        with work for it. False after the end, too.

        Raises:
            EvenstepError: the step could not be planned.
        """
        return bool(call(self._constructor, "fetches", self._next, self.rank))

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
        begin = time.perf_counter()
        self._ask()
        try:
            parcel: StepDelivery = self._asked.popleft().result()
        except Exception:
            self._asked.clear()  # what was asked for beyond it cannot come either
            raise
        waited = time.perf_counter() - begin
        if parcel.ended:
            self._ended = True
            self._asked.clear()
            call(self._constructor, "release", self.rank, self._next)
            raise StopIteration
        if parcel.about is None:
            self._asked.clear()
            raise ConfigurationError(self._nothing_to_fetch(parcel))
        self._last, self._next = self._next, self._next + 1
        self._ask()
        self.wait_seconds += waited
        return parcel.micro_batches, replace(parcel.about, wait_seconds=waited)

    def report(self, **signals: Any) -> None:
        """What was found in the step taken last, such as ``loss_by_source={"web": 2.1}``, for
        schedules that follow it. Where every rank reports before it takes its next step, what is
        drawn is the same in every run; see `evenstep.service.signals`.

        Raises:
            ConfigurationError: no step was taken yet, or a signal is not made of plain numbers.
        """
        if self._last is None:
            raise ConfigurationError(
                f"rank {self.rank} reports before its first step; report what a step has found"
            )
        call(self._planner, "report", self._last, self.rank, signals)

    def state_dict(self) -> Mapping[str, Any]:
        """From which a service begins with the step that comes next here: JSON-able. All ranks
        that have taken the same steps have the same."""
        state: Mapping[str, Any] = call(self._planner, "state_dict", self._next)
        return state

    def close(self) -> None:
        """Asks for no more, and lets go of what is under way. Harmless the second time."""
        self._asked.clear()
        self._closed = True

    def __enter__(self) -> RankClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> None:
        while len(self._asked) <= self._job.prefetch:
            wanted = self._next + len(self._asked)
            reply = self._constructor.start("deliver", wanted, self.rank, self._next)
            self._asked.append(reply)

    def _nothing_to_fetch(self, parcel: StepDelivery) -> str:
        who = f"rank {self.rank} ({self.place}) fetches nothing in step {parcel.step}"
        if parcel.fetched_by is None or parcel.fetched_by < 0:
            return (
                f"{who}: its stage of the pipeline needs no data; do not iterate where "
                "client.fetches is False"
            )
        peer = self._job.tree.place(parcel.fetched_by)
        return (
            f"{who}: rank {parcel.fetched_by} ({peer}) fetches for it and broadcasts; iterate "
            "there alone, and do not iterate where client.fetches is False"
        )
