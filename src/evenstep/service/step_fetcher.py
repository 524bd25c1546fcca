"""`StepFetcher`: plans and samples on their way to a Data Constructor.

Each step's plan is asked for once, and its samples are fetched once from each loader that has some,
by whichever client asks first; all others of that step wait for the same. Steps do not wait for
each other: where clients ask from several threads, one step's plan is made while another's samples
travel.

What is let go of is told to a loader with what is fetched from it next, in one message.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.errors import InvariantError
from evenstep.service.handles import Handle, Message, call, results
from evenstep.service.source_layout import SourceLayout, StageKey
from evenstep.strategy import LoadingPlan

__all__ = ["Samples", "StepFetcher"]

_ATTEMPTS = 4  # to fetch what loaders that were begun anew have lost

Samples = dict[StageKey, dict[int, Any]]
"""By bucket of the plan or of a subplan, samples by row."""


@dataclass
class _Step:
    lock: threading.Lock = field(default_factory=threading.Lock)
    plan: LoadingPlan | None = None
    samples: Samples | None = None
    held_by: dict[int, list[StageKey]] = field(default_factory=dict)
    """By loader, what it has staged for this constructor."""


class StepFetcher:
    """See the module docstring. Any number of threads may use it."""

    def __init__(
        self,
        clients: Sequence[int],
        planner: Handle,
        loaders: Sequence[Handle],
        layout: SourceLayout,
    ) -> None:
        """
        Args:
            clients: ranks whose buckets are fetched.
            planner, loaders, layout: see `DataConstructor`.
        """
        self._clients, self._layout = list(clients), layout
        self._planner, self._loaders = planner, list(loaders)
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._let_go: dict[int, dict[int, list[StageKey]]] = {}
        """By loader and step, what it has not been told yet."""

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step; None where the mixture has ended before it.

        Raises:
            EvenstepError: it could not be planned.
        """
        with self._lock:
            each = self._steps.setdefault(step, _Step())
        with each.lock:
            if each.plan is None:
                try:
                    each.plan = call(self._planner, "plan", step)
                finally:
                    if each.plan is None:  # asked again, the planner answers again
                        self._drop(step, each)
            return each.plan

    def samples(self, plan: LoadingPlan) -> Samples:
        """All samples of a plan that this constructor's clients fetch.

        Raises:
            EvenstepError: they could not be read.
        """
        with self._lock:
            each = self._steps.setdefault(plan.step, _Step())
        with each.lock:
            each.plan = plan
            if each.samples is None:
                each.held_by, each.samples = self._fetched(plan)
            elif self._untold > 1:  # nothing is fetched that could carry it
                self.flush()
            return each.samples

    def plans(self) -> list[LoadingPlan]:
        """Of the steps that are here."""
        with self._lock:
            return [each.plan for each in self._steps.values() if each.plan is not None]

    def forget(self, step: int) -> None:
        """Lets go of a step, here at once and at the loaders with what is fetched next."""
        with self._lock:
            each = self._steps.pop(step, None)
            for loader, keys in each.held_by.items() if each is not None else ():
                self._let_go.setdefault(loader, {})[step] = keys

    def flush(self) -> None:
        """Tells loaders what was let go of, as nothing may be fetched from them for long."""
        with self._lock:
            waiting, self._let_go = self._let_go, {}
        results([self._loaders[loader].start_all(_releases(w)) for loader, w in waiting.items()])

    def clear(self) -> None:
        with self._lock:
            self._steps.clear()
            self._let_go.clear()

    @property
    def _untold(self) -> int:
        """Steps that some loader holds in vain."""
        with self._lock:
            return max(map(len, self._let_go.values()), default=0)

    def _drop(self, step: int, each: _Step) -> None:
        with self._lock:
            if self._steps.get(step) is each:
                del self._steps[step]

    # Samples

    def _fetched(self, plan: LoadingPlan) -> tuple[dict[int, list[StageKey]], Samples]:
        rows = self._rows(plan)
        held_by: dict[int, list[StageKey]] = {}
        for key, wanted in rows.items():
            owners = self._layout.owners(plan.samples.source[wanted], plan.samples.position[wanted])
            for loader in np.unique(owners).tolist():
                held_by.setdefault(loader, []).append(key)
        samples: Samples = {key: {} for key in rows}
        asked = held_by
        for _ in range(_ATTEMPTS):
            missing: dict[int, list[StageKey]] = {}
            for loader, answers in zip(asked, results(self._ask(plan.step, asked))):
                for key, fetched in zip(asked[loader], answers[-len(asked[loader]) :]):
                    if fetched is None:
                        missing.setdefault(loader, []).append(key)
                    else:
                        samples[key].update(zip(fetched.rows.tolist(), fetched.samples))
            if not missing:
                break
            asked = missing
            lacking = sorted({key for keys in missing.values() for key in keys}, key=str)
            call(self._planner, "restage", plan.step, lacking)
        for key, wanted in rows.items():
            if samples[key].keys() != set(wanted.tolist()):
                raise InvariantError(
                    f"step {plan.step}: bucket {key} has {len(wanted)} samples, and "
                    f"{len(samples[key])} were staged for it"
                )
        return held_by, samples

    def _ask(self, step: int, asked: dict[int, list[StageKey]]) -> list[Any]:
        """[loaders asked] replies, of which the last answers are the samples."""
        with self._lock:
            waiting, self._let_go = self._let_go, {}
        replies = []
        for loader, keys in asked.items():
            told = waiting.pop(loader, {})
            told.pop(step, None)  # fetched again before the loader was told
            fetches: list[Message] = [("fetch", (step, bucket, name)) for name, bucket in keys]
            replies.append(self._loaders[loader].start_all([*_releases(told), *fetches]))
        # Those from which nothing is fetched now are told on their own.
        results([self._loaders[loader].start_all(_releases(w)) for loader, w in waiting.items()])
        return replies

    def _rows(self, plan: LoadingPlan) -> dict[StageKey, Any]:
        """Of each bucket that clients of this constructor fetch, the rows of the plan."""
        found: dict[StageKey, Any] = {}
        for name, each in [(None, plan), *plan.subplans.items()]:
            delivery = each.delivery
            mine = np.isin(delivery.fetched_by, self._clients)
            for bucket in np.unique(delivery.bucket[mine]).tolist():
                found[(name, bucket)] = np.flatnonzero(each.assignment.bucket == bucket)
        return found


def _releases(steps: dict[int, list[StageKey]]) -> list[Message]:
    return [("release", (step, keys)) for step, keys in steps.items()]
