"""`WorkloadPacking`: pretraining documents in micro-batches of equal work, on all ranks.

Each round is one step: `micro_batches` packed micro-batches on every rank. What a rank has
buffered divides in two. *Arrived* are the documents of this step and of those before, each of which
brings as many tokens as it is meant to hold; the others are ahead of their time. Ages count for
what has arrived, so the delay that `max_delay` bounds does not depend on the size of the buffer.

One rank alone plans as `plan_iteration` says, from what has arrived. Several ranks tell
each other how many outliers of each class wait and how much work they would do, and agree on the
class that goes and on the work of a micro-batch; to reach it, a rank may take documents ahead of
their time. At the end of the epoch everything that is left goes in as few steps as all ranks need.

Invariants: no micro-batch holds more than `max_tokens`; what a plan leaves stays in the window, in
order, so that the window is all the state there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, MemoryLimit
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.drain import drain
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.outliers import class_to_fire, classes, queue_heads
from evenstep.plan.packing.step_plan import plan_iteration
from evenstep.plan.packing.wlb import fill
from evenstep.plan.pipeline.micro_batch_order import order_micro_batches
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.sharding.adaptive import METHODS, shard
from evenstep.plan.sharding.kernel_latency import KernelLatency, TileLatency
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["WorkloadPacking"]

# Columns of a message; after them, for each class of outliers, how many wait, and the age and the
# work of the oldest.
_SAMPLES, _LAST, _STEPS_LEFT, _ORDINARY = range(4)


@dataclass(frozen=True)
class WorkloadPacking(Policy):
    """Packed micro-batches of equal work, long documents delayed (WLB-LLM, section 4).

    Buffer a few steps' worth of documents: ``4 * context * micro_batches / mean length`` or more.
    With fewer, steps hold what is buffered, and outliers find fewer of their kind.
    """

    context: int
    """Tokens that a micro-batch holds on average, on one rank. Several ranks take documents ahead
    of their time to reach equal work, and hold some more: 10 to 25 % at the default
    `max_tokens`."""
    micro_batches: int = field(kw_only=True)
    """In a step of each rank, at most. Where a rank has fewer documents left than that, the loader
    fills up with micro-batches of ``loss_scale`` 0."""
    max_tokens: int | None = field(default=None, kw_only=True)
    """Tokens that no micro-batch exceeds: 1.25 x context by default, and at least 1.1 x. A longer
    document is refused; `evenstep.CutDocuments` splits or truncates."""
    thresholds: tuple[int, ...] = field(default=(), kw_only=True)
    """Lengths from which on documents are outliers of the first, second, ... class, which wait for
    others of their kind: see `auto_thresholds`. None plans without classes, and keeps the tokens of
    steps steady instead: see `evenstep.plan.packing.steady`."""
    max_delay: int | None = field(default=None, kw_only=True)
    """Steps after which an outlier goes whatever it does to balance. By default 16 without
    thresholds, and 64 with them, which is reached where some rank lacks its like."""
    cost: Cost = field(default=DocumentCost(), kw_only=True)
    """Work of a micro-batch: a `DocumentCost`, or a cost that has `per_token` and `per_pair`."""
    schedule: PipelineSchedule | None = field(default=None, kw_only=True)
    """The pipeline that micro-batches are put in order for; None leaves the largest first."""
    context_parallel: int = field(default=1, kw_only=True)
    """Ranks that share every micro-batch (WLB-LLM, section 5). Of the loader's process group,
    neighbours share: its first so many ranks are the first data-parallel rank."""
    sharding: str = field(default="adaptive", kw_only=True)
    """How they share it: "per-sequence", "per-document", "hybrid", or "adaptive": for each
    micro-batch the one of these whose slowest rank is predicted to be fastest."""
    latency: KernelLatency = field(default=TileLatency(), kw_only=True)
    """What "adaptive" predicts by: tiles, or what `evenstep profile --attention` has measured."""
    packed: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        check_at_least(1, context_parallel=self.context_parallel)
        if self.sharding not in ("adaptive", *METHODS):
            raise ConfigurationError(
                f"sharding={self.sharding!r} must be 'adaptive' or one of {METHODS}"
            )
        _ = self.planning  # refuses what is wrong

    @cached_property
    def planning(self) -> PackingOptions:
        """What the planners are told: `SteadyOptions` where there are no thresholds."""
        options: dict[str, Any] = {
            "context": self.context,
            "micro_batches": self.micro_batches,
            "max_tokens": self.max_tokens,
            "workload": DocumentCost.of(self.cost),
        }
        if self.max_delay is not None:
            options["max_delay"] = self.max_delay
        if self.thresholds:
            return PackingOptions(thresholds=self.thresholds, **options)
        return SteadyOptions(**options)

    @property
    def max_length(self) -> int | None:
        return self.planning.cap

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.planning.cap, packed=True)

    @property
    def looks_ahead(self) -> bool:
        return False  # smaller windows would not make ranks run out together: documents differ

    def shard(self, lengths: Int64Array) -> Sharding:
        methods = METHODS if self.sharding == "adaptive" else (self.sharding,)
        return shard(lengths, self.context_parallel, latency=self.latency, methods=methods)

    def propose(self, window: Window) -> Proposal:
        options = self.planning
        arrived = self._arrived(window)
        works = options.workload.of_documents(window.lengths)
        kinds = classes(window.lengths, options.thresholds)
        own, ages = kinds[arrived], window.ages[arrived]
        queues = len(options.thresholds)
        waiting, heads = queue_heads(own, ages, queues)
        first = [int(works[arrived[own == kind][:1]].sum()) for kind in range(1, queues + 1)]
        last = window.exhausted and len(arrived) == len(window)
        left = len(drain(window.lengths, options)) if last else 0
        message = np.array(
            [
                len(window),
                int(last),
                left,
                int(works[arrived[own == 0]].sum()),
                *waiting.tolist(),
                *heads.tolist(),
                *first,
            ],
            np.int64,
        )
        # What is a group is known only once all have told what waits.
        pool = Groups.of([np.arange(len(window))])
        return Proposal(message, pool, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        active = messages[messages[:, _SAMPLES] > 0]
        if active[:, _LAST].all():
            steps = min(int(active[:, _STEPS_LEFT].max()), int(active[:, _SAMPLES].min()))
            return self._last(window, steps)
        arrived = self._arrived(window)
        if len(messages) > 1:
            groups = self._to_target(window, *self._agree(active))
        else:
            own = plan_iteration(self.planning, window.lengths[arrived], window.ages[arrived])
            groups = Groups(arrived[own.members], own.offsets)
        groups = self._in_order(groups, window)
        return Plan(groups, steps=np.array([0, len(groups)]), waited=arrived)

    def _to_target(self, window: Window, fire: int, like: int, target: int) -> Groups:
        """Micro-batches that come as close to the target as there are documents for it: outliers of
        the class that goes, those that have waited too long, and of the others the oldest that
        fit."""
        options = self.planning
        works = options.workload.of_documents(window.lengths)
        kinds = classes(window.lengths, options.thresholds)
        overdue = options.overdue(window.ages)
        chosen = overdue.copy()
        if fire:
            queue = np.flatnonzero(kinds == fire)
            nearest = np.argsort(np.abs(works[queue] - like), kind="stable")
            chosen[queue[nearest[: self.micro_batches]]] = True
        left = target * self.micro_batches - int(works[chosen].sum())
        room = options.cap * self.micro_batches - int(window.lengths[chosen].sum())
        candidates = np.flatnonzero(~chosen & (kinds == 0))
        pairs = zip(works[candidates].tolist(), window.lengths[candidates].tolist())
        for position, (work, length) in zip(candidates.tolist(), pairs):
            if work <= left and length <= room:
                chosen[position] = True
                left, room = left - work, room - length
        if not chosen.any():
            chosen[0] = True
        return fill(window.lengths, works, chosen, overdue, options, ordinary=kinds == 0)

    def _arrived(self, window: Window) -> Int64Array:
        """Positions of what has waited before, and of one step's worth of the others, or of as many
        as are buffered."""
        new = np.flatnonzero(window.ages == 0)
        held = window.lengths[new].cumsum()
        count = int(np.searchsorted(held, self.context * self.micro_batches)) + 1
        return np.sort(np.concatenate([np.flatnonzero(window.ages > 0), new[:count]]))

    def _agree(self, messages: Int64Array) -> tuple[int, int, int]:
        """The class of outliers that goes on all ranks, 0 for none; the work of the oldest one of
        it, which the others should be like; and the work of a micro-batch."""
        queues = len(self.thresholds)
        table = messages[:, _ORDINARY + 1 :].reshape(len(messages), 3, queues)
        waiting, heads, works = table.transpose(1, 0, 2)
        ordinary = int(messages[:, _ORDINARY].mean()) // self.micro_batches
        fire = class_to_fire(waiting, heads, self.micro_batches) if queues else 0
        if not fire:
            return 0, 0, ordinary
        like = int(works[heads[:, fire - 1].argmax(), fire - 1])
        return fire, like, ordinary + like

    def _last(self, window: Window, steps: int) -> Plan:
        """Everything that is left, or what goes into so many steps of it."""
        made = drain(window.lengths, self.planning, iterations=steps)
        if len(made) < steps:  # more steps than this rank needs, and documents enough
            made = _split(made, steps)
        parts = [self._in_order(part, window) for part in made[:steps]]
        micro_batches = [part.group(k) for part in parts for k in range(len(part))]
        return Plan(Groups.of(micro_batches), steps=np.cumsum([0, *map(len, parts)]))

    def _in_order(self, groups: Groups, window: Window) -> Groups:
        if self.schedule is None or not len(groups):
            return groups
        shapes = groups.shapes(window.lengths)
        work = self.planning.workload(shapes, packed=True)
        return groups.take(order_micro_batches(work, self.schedule))


def _split(made: list[Groups], steps: int) -> list[Groups]:
    """More steps out of the same documents: those with most micro-batches, or else documents, are
    divided in two until there are enough."""
    made = list(made)
    while len(made) < steps:
        at = max(range(len(made)), key=lambda i: (len(made[i]), len(made[i].members)))
        whole = made[at]
        if len(whole) > 1:
            half = len(whole) // 2
            order = np.arange(len(whole))
            made[at : at + 1] = [whole.take(order[:half]), whole.take(order[half:])]
        else:
            half = len(whole.members) // 2
            parts = (whole.members[:half], whole.members[half:])
            made[at : at + 1] = [Groups.of([part]) for part in parts]
    return made
