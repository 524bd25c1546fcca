"""`DataConstructor`: builds the micro-batches of its data-parallel groups, step by step.

It builds each bucket once, when the first of the clients that share it asks. A step is kept until
every client that fetches it has moved on, so a client that asks twice gets the same twice. Then it
is dropped, here and at the loaders. If clients are far apart, the samples of the least recently
requested steps are dropped earlier; such a step is built again from the same plan on request.

Clients request steps ahead, and from several threads: one step is built while the plan and the
samples of others are on their way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evenstep.batch.loss_scale import shard_loss_scale
from evenstep.errors import EvenstepError
from evenstep.protocol.receipts import StepTotals
from evenstep.service.client.service_step import (
    ServiceStep,
    StepDelivery,
    SubplanStep,
    mesh_changed,
)
from evenstep.service.constructor.step_fetcher import Samples, StepFetcher
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.messages import Handle, call
from evenstep.service.planner.planner import Planner
from evenstep.strategy import LoadingPlan

if TYPE_CHECKING:
    from evenstep.service.constructor.batch_builder import BuiltBucket

logger = logging.getLogger("evenstep")

_HELD_SECONDS = 0.2
"""After which a client that must wait asks again, so that others can use its thread."""
_LOOKS = 50
"""After which the end of a mesh is taken for granted, of which nobody has told."""
_WINDOWS = 4
"""Steps whose samples are held, as a multiple of those that a client requests ahead."""


class DataConstructor:
    """See the module docstring."""

    def __init__(
        self,
        job: Job,
        buckets: Sequence[int],
        planner: Handle,
        loaders: Sequence[Handle],
        layout: SourceLayout,
        *,
        on_queued: Callable[[float], None] | None = None,
    ) -> None:
        """
        Args:
            buckets: data-parallel groups whose clients it serves, in all pipeline stages and along
                all other axes.
            planner: decides what is in a step.
            loaders: [loaders] where samples are staged.
            layout: which loader owns which samples.
            on_queued: called with the seconds that a client waited while batches of others were
                built.
        """
        self._job, self._planner = job, planner
        self.buckets = tuple(sorted(buckets))
        clients = job.tree.ranks[:, list(self.buckets)]
        self.clients: tuple[int, ...] = tuple(sorted(clients.ravel().tolist()))
        self._ends_at: int | None = None
        self._started = threading.Condition()  # for the next three
        self._held = ""
        self._last_begun = -1
        self._delivering = 0
        self._fetcher = StepFetcher(self.clients, planner, loaders, layout)
        self._on_queued = on_queued
        self._taken_lock = threading.Lock()
        self._taken = dict.fromkeys(self.clients, 0)
        """By client: it has received all steps below this one."""
        self._building = threading.Lock()
        self._warned = False
        self._most_held = _WINDOWS * (job.memory.prefetch + 1)
        self._recent: dict[int, StepTotals | None] = {}
        """Steps whose samples or batches are here, and what was counted of them; that asked for
        last comes last."""

    # Messages of clients

    def fetches(self, step: int, rank: int) -> bool:
        """Whether a client fetches anything itself in a step."""
        for _ in range(_LOOKS):
            self._check_mesh(rank, step, taken=step)
            plan = self._fetcher.plan(step)
            if plan is None or plan.tree == self._job.tree:
                return plan is not None and _fetches(plan, rank)
            with self._started:  # the planner has the next mesh: `end_at` is on its way
                self._started.wait_for(lambda: self._ends_at is not None, _HELD_SECONDS)
        raise mesh_changed(rank, step, step)

    def deliver(self, step: int, rank: int, taken: int = 0) -> StepDelivery:
        """The micro-batches of a client in a step, the same each time it asks.

        Args:
            taken: the client never asks again for steps below this one, unless it is restarted.

        Raises:
            EvenstepError: the step could not be planned, read or built. Every client gets the
                error.
        """
        self._update_taken(rank, taken, may_restart=step == taken)
        with self._started:
            if not self._started.wait_for(lambda: not self._held, _HELD_SECONDS):
                return StepDelivery(step=step, held=self._held)
            self._check_mesh(rank, step, taken)
            self._last_begun = max(self._last_begun, step)
            self._delivering += 1
        try:
            return self._delivered(step, rank)
        finally:
            with self._started:
                self._delivering -= 1
                self._started.notify_all()

    def _delivered(self, step: int, rank: int) -> StepDelivery:
        plan = self._fetcher.plan(step)
        if plan is None:
            return StepDelivery(step=step, ended=True)
        if not _fetches(plan, rank):
            return StepDelivery(step=step, fetched_by=plan.delivery.fetcher_of(rank))
        try:
            self._fetcher.samples(plan)  # while other steps are built
            begin = time.perf_counter()
            with self._building:
                if self._on_queued is not None:
                    self._on_queued(time.perf_counter() - begin)
                self._drop_all_but_recent(step)
                return self._delivery(plan, self._fetcher.samples(plan), rank)
        except EvenstepError as error:
            self._check_mesh(rank, step)
            call(self._planner, Planner.fail, step + 1, error)
            raise

    def release(self, rank: int, taken: int) -> None:
        """Notes that a client has received the steps below `taken`, and asks for no more now."""
        self._update_taken(rank, taken, may_restart=False)
        self._fetcher.flush()

    def hold(self, why: str) -> tuple[int, int]:
        """Starts no delivery until `end_at`, and finishes those that have started. Returns the next
        step of the client that is furthest, and the last step of which a delivery has started, -1
        if none has.

        Args:
            why: for clients that wait.
        """
        with self._started:
            self._held = why
            self._started.wait_for(lambda: not self._delivering)
            with self._taken_lock:
                return max(self._taken.values()), self._last_begun

    def begun(self) -> tuple[str, int, int]:
        """The token of the planner that it asks (see `Planner.begin_change`), the next step of the
        client that is furthest, and the last step whose plan is known here, -1 if none is."""
        token = call(self._planner, Planner.begin_change)
        planned = [plan.step for plan in self._fetcher.plans()]
        with self._started, self._taken_lock:
            return token, max(self._taken.values()), max([self._last_begun, *planned])

    def end_at(self, step: int | None) -> None:
        """Serves no steps from this one on, because the mesh changes there. None serves all."""
        with self._started:
            self._ends_at = step
        if step is not None:
            self._fetcher.drop_from(step)
            with self._taken_lock:
                for number in [each for each in self._recent if each >= step]:
                    del self._recent[number]
        with self._started:  # only now, as no delivery may start until here
            self._held = ""
            self._started.notify_all()

    def use_loaders(self, loaders: Sequence[Handle], layout: SourceLayout) -> None:
        """See `StepFetcher.use_loaders`."""
        self._fetcher.use_loaders(loaders, layout)

    def status(self) -> Mapping[str, Any]:
        """JSON-able."""
        with self._taken_lock:
            held = len(self._recent)
        return {
            "buckets": list(self.buckets),
            "clients": list(self.clients),
            "steps": sorted(plan.step for plan in self._fetcher.plans()),
            "held_steps": held,
            "taken": {str(rank): taken for rank, taken in self._taken.items()},
        }

    def close(self) -> None:
        """Drops all steps. Idempotent."""
        self._fetcher.clear()

    def _update_taken(self, rank: int, taken: int, *, may_restart: bool) -> None:
        """Drops the steps that no client fetches any more.

        Args:
            may_restart: whether it may be the first message of a restarted client. A lower `taken`
                from any other message is stale (reordered) and ignored.
        """
        with self._taken_lock:
            if may_restart or taken > self._taken[rank]:
                self._taken[rank] = taken
            for plan in [each for each in self._fetcher.plans() if each.step < taken]:
                waiting = [each for each in self.clients if self._taken[each] <= plan.step]
                if not any(_fetches(plan, each) for each in waiting):
                    self._fetcher.forget(plan.step)
                    self._recent.pop(plan.step, None)

    def _drop_all_but_recent(self, step: int) -> None:
        """Notes that a step is asked for. If clients are so far apart that many steps are held,
        drops the samples and batches of those asked for longest ago."""
        with self._taken_lock:
            self._recent[step] = self._recent.pop(step, None)
            for number in list(self._recent)[: -self._most_held]:
                self._fetcher.drop_samples(number)
                del self._recent[number]

    # Deliveries

    def _delivery(self, plan: LoadingPlan, samples: Samples, rank: int) -> StepDelivery:
        from evenstep.service.constructor.batch_builder import context_shards, own_copy

        delivery, shards = plan.delivery, context_shards(self._job, plan)
        own, fetched_by = delivery.bucket_of(rank), delivery.fetcher_of(rank)
        fetched = delivery.buckets_of(rank)
        built = {bucket: self._built(plan, samples, bucket, shards) for bucket in fetched}
        micro_batches: list[Any] = []
        supervised: tuple[int, ...] = ()
        context_rank = self._job.tree.place(rank).CP
        if own in built:
            micro_batches, supervised = built[own].for_rank(context_rank)
        peers = {bucket: own_copy(each.batches) for bucket, each in built.items() if bucket != own}
        totals = self._totals(plan)
        total, reduction = totals.supervised_tokens.sum(), self._job.measures.loss_reduction
        loss_scales = tuple(
            shard_loss_scale(count, int(total), plan.buckets * shards, reduction=reduction)
            for count in supervised
        )
        tables = tuple(plan.members(own, k) for k in range(plan.micro_batches))
        about = ServiceStep(
            epoch=0,
            step=plan.step,
            rank=own,
            world_size=plan.buckets,
            context_rank=context_rank if shards > 1 else 0,
            filler=False,
            indices=tuple(table.identity(row) for table in tables for row in range(len(table))),
            totals=replace(totals, by_source=totals.by_source[:, :0]),
            by_source=np.stack([totals.by_source[own], totals.by_source.sum(axis=0)]),
            names=plan.samples.sources,
            loss_scale=sum(loss_scales),
            loss_scales=loss_scales,
            client=rank,
            axis=plan.axis,
            tables=tables,
            fetched_by=fetched_by,
            imbalance_before=plan.imbalance_before,
            weights=dict(plan.weights),
            carried=len(plan.carried),
            notes=plan.notes,
            subplans={n: self._subplan_step(plan, samples, n, rank) for n in plan.subplans},
            peers=peers,
        )
        batches = own_copy(micro_batches)
        return StepDelivery(
            step=plan.step, fetched_by=fetched_by, micro_batches=batches, about=about
        )

    def _totals(self, plan: LoadingPlan) -> StepTotals:
        from evenstep.service.constructor.plan_totals import step_totals

        totals = self._recent.get(plan.step)
        if totals is None:
            totals = step_totals(self._job, plan)
            with self._taken_lock:
                if plan.step in self._recent:  # else it has just been dropped
                    self._recent[plan.step] = totals
            if not totals.supervised_tokens.any() and not self._warned:
                self._warned = True
                logger.warning(
                    "step %d has no supervised token on any rank: all labels of its samples are "
                    "-100, so nothing is learned from it; see what transforms of its sources mask",
                    plan.step,
                )
        return totals

    def _built(self, plan: LoadingPlan, samples: Samples, bucket: int, shards: int) -> BuiltBucket:
        from evenstep.service.constructor.batch_builder import BuiltBucket, build

        if not isinstance(held := samples[None, bucket], BuiltBucket):
            held = samples[None, bucket] = build(self._job, plan, bucket, held, shards)
        return held

    def _subplan_step(
        self, plan: LoadingPlan, samples: Samples, name: str, rank: int
    ) -> SubplanStep:
        from evenstep.service.constructor.batch_builder import subplan_batches, subplan_step

        batches: dict[int, list[Any]] = {}
        for bucket in plan.subplans[name].delivery.buckets_of(rank):
            if isinstance(held := samples[name, bucket], dict):
                held = subplan_batches(self._job, plan, name, bucket, held)
            batches[bucket] = samples[name, bucket] = held
        return subplan_step(plan, name, plan.delivery.bucket_of(rank), batches)

    def _check_mesh(self, rank: int, step: int, taken: int = 0) -> None:
        if self._ends_at is not None and step >= self._ends_at:
            if taken >= self._ends_at:  # else it has requested ahead, and waits for earlier steps
                self.release(rank, self._ends_at)
            raise mesh_changed(rank, step, self._ends_at)


def _fetches(plan: LoadingPlan, rank: int) -> bool:
    """Whether a rank fetches anything of the plan itself or of its subplans."""
    plans = (plan, *plan.subplans.values())
    return any(each.delivery.fetcher_of(rank) == rank for each in plans)
