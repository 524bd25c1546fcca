"""`StepFetcher`: gets plans and samples for a Data Constructor.

Each step's plan is requested once, and its samples are fetched once from each loader that has some,
when the first client asks; other clients that ask for the step wait for the same result. Steps do
not wait for each other: clients ask from several threads, so one step is planned while the samples
of another are on their way.

One message tells a loader what to stage, fetches it, and releases earlier steps. Small steps share
messages with the next steps that can be planned already, because each message has a fixed cost.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import EvenstepError, LoaderDiedError, MeshChangedError
from evenstep.service.constructor.wanted_samples import Samples, WantedSamples
from evenstep.service.job.source_layout import SourceLayout, StageKey
from evenstep.service.messages import Handle, Message, call, results
from evenstep.strategy import LoadingPlan

_ATTEMPTS = 4  # to fetch samples from loaders that are restarted meanwhile
_AHEAD_BYTES = 2 << 20  # of samples that are fetched before a client asks for them


@dataclass(eq=False)
class _Step:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while samples are fetched."""
    plan: LoadingPlan | None = None
    """The planner's answer to a request for this step."""
    ahead: LoadingPlan | None = None
    """The same plan, as it came with that of an earlier step."""
    samples: Samples | None = None
    staged_on: dict[Handle, list[StageKey]] = field(default_factory=dict)
    """By loader, the buckets that it has staged for this constructor."""

    @property
    def known(self) -> LoadingPlan | None:
        return self.ahead if self.plan is None else self.plan


class StepFetcher:
    """See the module docstring. Any number of threads may use it."""

    def __init__(
        self,
        clients: Sequence[int],
        planner: Handle,
        loaders: Sequence[Handle],
        layout: SourceLayout,
        *,
        together: int = 1,
    ) -> None:
        """
        Args:
            clients: ranks whose buckets are fetched.
            planner, loaders, layout, together: see `DataConstructor`.
        """
        self._clients, self._layout = list(clients), layout
        self._planner, self._loaders = planner, list(loaders)
        self._together = together
        self._ahead = 0
        """Steps that are planned and fetched with the one that is asked for, at most."""
        self._planning = threading.Lock()  # plans are made one after the other
        self._end: float = math.inf
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
        with self._lock:
            each = self._steps.setdefault(step, _Step())
        if each.plan is None:
            with self._planning:
                if each.plan is None:
                    try:
                        each.plan = self._planned(step, each)
                    finally:
                        if each.plan is None:  # asked again, the planner answers again
                            self._drop(step, each)
        return each.plan

    def samples(self, plan: LoadingPlan) -> Samples:
        """All samples of a plan that this constructor's clients fetch.

        Raises:
            MeshChangedError: the step is not served any more, see `end_at`.
            EvenstepError: they could not be read.
        """
        with self._lock:
            each = self._steps.setdefault(plan.step, _Step())
        with each.lock:
            if plan.step >= self._end:
                raise MeshChangedError(f"step {plan.step} is one of another mesh")
            each.plan = plan
            found = each.samples
            if found is None:
                with self._lock:
                    self._fetching.append(each)
                try:
                    found = self._fetch_with_next(each, plan)
                finally:
                    with self._lock:
                        self._fetching.remove(each)
            elif self._unsent_releases > 1:  # no fetch comes that could carry them
                self.flush()
            return found

    def plans(self) -> list[LoadingPlan]:
        """Plans of the steps that are here."""
        with self._lock:
            found = [each.known for each in self._steps.values()]
        return [plan for plan in found if plan is not None]

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

    def end_at(self, step: int | None) -> None:
        """Fetches no samples from this step on, and plans none of these steps ahead; None is no
        end. Waits for what is being planned."""
        with self._planning:
            self._end = math.inf if step is None else step

    def drop_from(self, step: int) -> None:
        """Drops a step and all later ones, which are not served any more. Loaders get no more
        messages about these steps; the caller tells them."""
        self.end_at(step)
        with self._lock:
            dropped = [each for number, each in self._steps.items() if number >= step]
        for each in dropped:
            with each.lock:  # after what is being fetched
                pass
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

    @property
    def _unsent_releases(self) -> int:
        """Steps staged on a loader that no client needs any more."""
        with self._lock:
            return max(map(len, self._releases.values()), default=0)

    def _send(self, releases: dict[Handle, dict[int, list[StageKey]]]) -> None:
        replies = [loader.send_all(_messages(steps)) for loader, steps in releases.items()]
        with suppress(LoaderDiedError):  # it is not used any more, or the next fetch says so
            results(replies)

    def _drop(self, step: int, each: _Step) -> None:
        with self._lock:
            if self._steps.get(step) is each:
                del self._steps[step]

    def _planned(self, step: int, each: _Step) -> LoadingPlan | None:
        """The planner's answer. The planner is asked even about a plan that is already here: if it
        has failed since, every client must get the error."""
        plan: LoadingPlan | None
        if each.ahead is not None:
            return each.ahead if call(self._planner, "has_plan", step) else None
        count = min(self._ahead, self._end - step - 1)
        if count <= 0:
            plan = call(self._planner, "plan", step)
            return plan
        asked: list[Message] = [("plan_ahead", (step, count)), ("plan", (step,))]
        ahead, plan = self._planner.send_all(asked).result()
        with self._lock:
            for later in ahead:
                self._steps.setdefault(later.step, _Step()).ahead = later
        return plan

    # Samples

    def _fetch_with_next(self, each: _Step, plan: LoadingPlan) -> Samples:
        """Fetches the samples of a step whose lock is held, and of small steps after it."""
        with ExitStack() as locked:
            group = [(each, plan), *self._next(plan.step, locked)]
            try:
                return self._fetch(group)
            except EvenstepError:
                if len(group) == 1:
                    raise
                self._together = 1  # a client that requests the failing step gets the error
                return self._fetch(group[:1])

    def _next(self, step: int, locked: ExitStack) -> Iterator[tuple[_Step, LoadingPlan]]:
        """The steps after one that are planned and not fetched; their locks are taken."""
        for number in range(step + 1, step + 1 + self._ahead):
            with self._lock:
                each = self._steps.get(number)
            if each is None or not each.lock.acquire(blocking=False):
                return
            locked.callback(each.lock.release)
            plan = each.known
            if plan is None or each.samples is not None or number >= self._end:
                return
            yield each, plan

    def _fetch(self, group: Sequence[tuple[_Step, LoadingPlan]]) -> Samples:
        """Fetches the samples of steps, and returns those of the first one."""
        with self._lock:
            loaders, layout = self._loaders, self._layout
        wanted = [WantedSamples.of(plan, self._keys(plan), loaders, layout) for _, plan in group]
        missing = [each.staged_on for each in wanted]
        sizes = [0] * len(group)
        for _ in range(_ATTEMPTS):
            asked, missing = missing, [{} for _ in group]
            for loader, answers in self._fetch_from(asked, wanted).items():
                for number, each in enumerate(wanted):
                    if loader not in asked[number]:
                        continue
                    sizes[number] += next(answers)
                    for key, fetched in zip(asked[number][loader], answers):
                        if fetched is None:
                            missing[number].setdefault(loader, []).append(key)
                        else:
                            each.samples[key].update(zip(fetched.rows.tolist(), fetched.samples))
            if not any(missing):
                break
        for (step, _), each in zip(group, wanted):
            each.check()
            step.staged_on, step.samples = each.staged_on, each.samples
        self._ahead = min(self._together - 1, _AHEAD_BYTES // max(*sizes, 1))
        return wanted[0].samples

    def _fetch_from(
        self, asked: Sequence[dict[Handle, list[StageKey]]], wanted: Sequence[WantedSamples]
    ) -> dict[Handle, Iterator[Any]]:
        """By loader, for each step that it was asked for: bytes that it has staged, and by bucket
        the samples, or None.

        Args:
            asked: [steps] by loader, buckets.
        """
        with self._lock:
            releases, self._releases = self._releases, {}
        replies, skipped = {}, {}
        for loader in dict.fromkeys(loader for each in asked for loader in each):
            ended = releases.pop(loader, {})
            messages: list[Message] = []
            for each, step in zip(asked, wanted):
                ended.pop(step.plan.step, None)  # fetched again before it was released
                if keys := each.get(loader):
                    messages.append(("stage", (step.tasks[loader], keys)))
                    messages += [("fetch", (step.plan.step, key, name)) for name, key in keys]
            released = _messages(ended)
            replies[loader] = loader.send_all([*released, *messages])
            skipped[loader] = len(released)
        self._send(releases)  # to loaders from which nothing is fetched now
        answers = dict(zip(replies, results(list(replies.values()))))
        return {loader: iter(each[skipped[loader] :]) for loader, each in answers.items()}

    def _keys(self, plan: LoadingPlan) -> list[StageKey]:
        """The buckets that clients of this constructor fetch."""
        found: list[StageKey] = []
        for name, each in [(None, plan), *plan.subplans.items()]:
            fetched = {
                bucket for rank in self._clients for bucket in each.delivery.buckets_of(rank)
            }
            found += [(name, bucket) for bucket in each.holders(fetched)]
        return found


def _messages(steps: dict[int, list[StageKey]]) -> list[Message]:
    return [("release", (step, keys)) for step, keys in steps.items()]
