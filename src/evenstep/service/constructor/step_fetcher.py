"""`StepFetcher`: gets plans and samples for a Data Constructor.

Each step's plan is requested once, and its samples are fetched once from each loader that has some,
when the first client asks; other clients that ask for the step wait for the same result. Steps do
not wait for each other: clients ask from several threads, so one step is planned while the samples
of another are on their way.

One message tells a loader what to stage, fetches it, and releases earlier steps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import InvariantError, LoaderDiedError
from evenstep.service.job.source_layout import SourceLayout, StageKey, loader_tasks, members_of
from evenstep.service.messages import Handle, Message, call, message, results
from evenstep.service.planner.planner import Planner
from evenstep.service.source_loader.source_loader import SourceLoader
from evenstep.strategy import LoaderTask, LoadingPlan

Samples = dict[StageKey, Any]
"""By bucket of the plan or of a subplan: samples by row, or what was built of them since."""

_ATTEMPTS = 4  # to fetch samples from loaders that are restarted meanwhile


@dataclass(eq=False)
class _Step:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while samples are fetched."""
    plan: LoadingPlan | None = None
    samples: Samples | None = None
    staged_on: dict[Handle, list[StageKey]] = field(default_factory=dict)
    """By loader, the buckets that it has staged for this constructor."""


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
        self._planning = threading.Lock()  # plans are made one after the other
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._releases: dict[Handle, dict[int, list[StageKey]]] = {}
        """By loader and step, buckets to release that have not been sent yet."""
        self._fetching: list[_Step] = []
        """Steps whose samples are being fetched, also those that were dropped since."""

    def use_loaders(self, loaders: Sequence[Handle], layout: SourceLayout) -> None:
        """Fetches from these loaders only. When this returns, no others are asked any more."""
        with self._lock:
            self._loaders, self._layout = list(loaders), layout
            self._releases = {h: steps for h, steps in self._releases.items() if h in loaders}
            steps = [*self._steps.values(), *self._fetching]
        for each in steps:
            with each.lock:  # after what is being fetched
                each.staged_on = {h: keys for h, keys in each.staged_on.items() if h in loaders}

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step; None if the mixture has ended before it.

        Raises:
            EvenstepError: the step could not be planned.
        """
        each = self._step(step)
        if each.plan is None:
            with self._planning:
                if each.plan is None:
                    try:
                        each.plan = call(self._planner, Planner.plan, step)
                    finally:
                        with self._lock:  # asked again, the planner answers again
                            if each.plan is None and self._steps.get(step) is each:
                                del self._steps[step]
        return each.plan

    def samples(self, plan: LoadingPlan) -> Samples:
        """All samples of a plan that this constructor's clients fetch.

        Raises:
            EvenstepError: they could not be read.
        """
        each = self._step(plan.step)
        with each.lock:
            each.plan = plan
            found = each.samples
            if found is None:
                with self._lock:
                    self._fetching.append(each)
                try:
                    found = self._fetch(each, plan)
                finally:
                    with self._lock:
                        self._fetching.remove(each)
            elif max(map(len, list(self._releases.values())), default=0) > 1:  # and no fetch comes
                self.flush()
            return found

    def plans(self) -> list[LoadingPlan]:
        """Plans of the steps that are here."""
        with self._lock:
            return [each.plan for each in self._steps.values() if each.plan is not None]

    def forget(self, step: int) -> None:
        """Drops a step, here at once and at the loaders with the next fetch."""
        self.drop_samples(step)
        with self._lock:
            self._steps.pop(step, None)

    def drop_samples(self, step: int) -> None:
        """As `forget`, but keeps the plan, from which the samples can be fetched again."""
        with self._lock:
            each = self._steps.get(step)
            if each is None:
                return
            for loader, keys in each.staged_on.items():
                self._releases.setdefault(loader, {})[step] = keys
            each.samples, each.staged_on = None, {}

    def drop_from(self, step: int) -> None:
        """Drops a step and all later ones, none of which is being fetched. Loaders get no more
        messages about these steps; the caller tells them."""
        with self._lock:
            for number in [each for each in self._steps if each >= step]:
                del self._steps[number]
            for steps in self._releases.values():
                for number in [each for each in steps if each >= step]:
                    del steps[number]

    def flush(self) -> None:
        """Sends the pending releases now, for when no fetch may follow soon."""
        with self._lock:
            releases, self._releases = self._releases, {}
        self._send(releases)

    def clear(self) -> None:
        with self._lock:
            self._steps.clear()
            self._releases.clear()

    def _step(self, number: int) -> _Step:
        with self._lock:
            return self._steps.setdefault(number, _Step())

    def _send(self, releases: dict[Handle, dict[int, list[StageKey]]]) -> None:
        replies = [loader.send_all(_messages(steps)) for loader, steps in releases.items()]
        with suppress(LoaderDiedError):  # it is not used any more, or the next fetch says so
            results(replies)

    # Samples

    def _fetch(self, step: _Step, plan: LoadingPlan) -> Samples:
        """Fetches the samples of a step whose lock is held.

        Raises:
            InvariantError: loaders do not have all of them.
        """
        with self._lock:
            loaders, layout = self._loaders, self._layout
        keys = self._keys(plan)
        tasks = dict(zip(loaders, loader_tasks(plan, layout, keys)))
        having = {
            loader: [(name, bucket) for name, bucket in keys if bucket in task.parts[name].bucket]
            for loader, task in tasks.items()
        }
        staged_on = {loader: own for loader, own in having.items() if own}
        samples: Samples = {key: {} for key in keys}
        missing = staged_on
        for _ in range(_ATTEMPTS):
            asked, missing = missing, {}
            for loader, answers in self._fetch_from(asked, tasks).items():
                for key, fetched in zip(asked[loader], answers):
                    if fetched is None:
                        missing.setdefault(loader, []).append(key)
                    else:
                        samples[key].update(zip(fetched.rows.tolist(), fetched.samples))
            if not missing:
                break
        for key, found in samples.items():
            rows = members_of(plan, key)
            if found.keys() != set(rows.tolist()):
                raise InvariantError(
                    f"step {plan.step}: bucket {key} has {len(rows)} samples, and {len(found)} "
                    "were staged for it"
                )
        step.staged_on, step.samples = staged_on, samples
        return samples

    def _fetch_from(
        self, asked: Mapping[Handle, list[StageKey]], tasks: Mapping[Handle, LoaderTask]
    ) -> dict[Handle, list[Any]]:
        """By loader, for each bucket that it was asked for: the samples, or None."""
        with self._lock:
            releases, self._releases = self._releases, {}
        replies = []
        for loader, keys in asked.items():
            task, ended = tasks[loader], releases.pop(loader, {})
            ended.pop(task.step, None)  # fetched again before it was released
            staging = message(SourceLoader.stage, task, keys)
            fetches = [message(SourceLoader.fetch, task.step, key, name) for name, key in keys]
            replies.append(loader.send_all([*_messages(ended), staging, *fetches]))
        self._send(releases)  # to loaders from which nothing is fetched now
        return {
            loader: answers[-len(keys) :]
            for (loader, keys), answers in zip(asked.items(), results(replies))
        }

    def _keys(self, plan: LoadingPlan) -> list[StageKey]:
        """The buckets that clients of this constructor fetch."""
        plans: list[tuple[str | None, LoadingPlan]] = [(None, plan), *plan.subplans.items()]
        return [
            (name, bucket)
            for name, each in plans
            for bucket in sorted({b for r in self._clients for b in each.delivery.buckets_of(r)})
        ]


def _messages(steps: dict[int, list[StageKey]]) -> list[Message]:
    return [message(SourceLoader.release, step, keys) for step, keys in steps.items()]
