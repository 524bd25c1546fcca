"""`WorkloadPacking`: pretraining documents in micro-batches of equal cost, on all ranks.

Each round is one step: `micro_batches` packed micro-batches on every rank. The documents that a
rank has buffered divide in two. *Arrived* are those of this step and the steps before, each of
which brings as many tokens as a step is meant to hold; the others are ahead of their time. Ages
count from arrival, so the delay that `max_delay` bounds does not depend on the size of the buffer.

A single rank plans by `plan_step`, from what has arrived. Several ranks exchange how many outliers
of each class wait and what their other documents cost, and agree on the class to release and on the
cost of a micro-batch; to reach it, a rank may take documents ahead of their time. At the end of the
epoch everything that is left is planned, in as few steps as all ranks need.

Invariants: no micro-batch holds more than `max_tokens`; documents that a plan leaves out stay in
the window, in order, so that the window is all the state there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, MemoryLimit
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.dynamic_context import DynamicContext, Exchange
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.drain import drain
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.outliers import class_to_release, length_classes, queue_heads
from evenstep.plan.packing.shared_step import (
    SharedStep,
    check_context_parallel,
    offer,
    share,
    taken,
    too_long,
)
from evenstep.plan.packing.step_plan import plan_step
from evenstep.plan.packing.wlb import fill
from evenstep.plan.pipeline.micro_batch_order import order_micro_batches
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.sharding.adaptive import METHODS, shard
from evenstep.plan.sharding.kernel_latency import KernelLatency, TileLatency
from evenstep.plan.sharding.sharding import Sharding

# Columns of a message. After them come three numbers for each class of outliers: how many wait, and
# the age and the cost of the oldest.
_SAMPLES, _LAST, _STEPS_LEFT, _ORDINARY = range(4)


@dataclass(frozen=True)
class WorkloadPacking(Policy):
    """Packed micro-batches of equal cost, long documents delayed (WLB-LLM, section 4).

    Buffer a few steps' worth of documents: ``4 * context * micro_batches / mean length`` or more.
    With fewer, steps hold what is buffered, and outliers find fewer of their kind.
    """

    context: int
    """Tokens that a micro-batch holds on average, on a single rank. Several ranks take documents
    ahead of their time to reach equal cost, and hold more: 10 to 25 % at the default
    `max_tokens`."""
    micro_batches: int = field(kw_only=True)
    """Micro-batches of a step on each rank, at most. If a rank has fewer documents left than that,
    the loader adds micro-batches of ``loss_scale`` 0."""
    max_tokens: int | None = field(default=None, kw_only=True)
    """Tokens that no micro-batch exceeds: 1.25 x context by default, and at least 1.1 x. A longer
    document is refused; `evenstep.CutDocuments` splits or truncates."""
    thresholds: tuple[int, ...] = field(default=(), kw_only=True)
    """Lengths from which on documents are outliers of the first, second, ... class, which wait for
    others like them: see `auto_thresholds`. Without any there are no classes, and steps hold steady
    numbers of tokens instead: see `evenstep.plan.packing.step_plan`."""
    max_delay: int | None = field(default=None, kw_only=True)
    """Steps after which an outlier is planned, whatever that does to balance. By default 16 without
    thresholds, and 64 with them, which is reached if some rank lacks outliers like it."""
    cost: Cost = field(default=DocumentCost(), kw_only=True)
    """Cost of a micro-batch: a `DocumentCost`, or a cost that has `per_token` and `per_pair`."""
    schedule: PipelineSchedule | None = field(default=None, kw_only=True)
    """The pipeline to order micro-batches for; None leaves the most costly first."""
    context_parallel: int | str = field(default=1, kw_only=True)
    """Ranks that share every micro-batch (WLB-LLM, section 5). They are neighbours in the loader's
    process group: its first `context_parallel` ranks are the first data-parallel rank. "dynamic":
    in every micro-batch each document is on as many ranks as it needs. Then `context` and
    `max_tokens` are of one rank, `micro_batches` is how many there would be of `context` tokens,
    and a document may have `ranks` times `max_tokens`."""
    ranks: int | None = field(default=None, kw_only=True)
    """With "dynamic", all ranks of the loader's process group."""
    exchange: Exchange = field(default=Exchange(), kw_only=True)
    """With "dynamic", what it costs that ranks share documents."""
    sharding: str = field(default="adaptive", kw_only=True)
    """How they share it: "per-sequence", "per-document", "hybrid", or "adaptive", which takes for
    each micro-batch the one of these whose slowest rank is predicted to be fastest."""
    latency: KernelLatency = field(default=TileLatency(), kw_only=True)
    """Prediction used by "adaptive": tiles, or what `evenstep profile --attention` has measured."""
    packed: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        check_context_parallel(
            self.context_parallel,
            self.ranks,
            thresholds=self.thresholds,
            max_delay=self.max_delay,
            schedule=self.schedule,
        )
        if self.sharding not in ("adaptive", *METHODS):
            raise ConfigurationError(
                f"sharding={self.sharding!r} must be 'adaptive' or one of {METHODS}"
            )
        _ = self.planning  # raises if an option is wrong

    @cached_property
    def planning(self) -> PackingOptions:
        """Options of the planner: `SteadyOptions` if there are no thresholds."""
        options: dict[str, Any] = {
            "context": self.context,
            "micro_batches": self.micro_batches,
            "max_tokens": self.max_tokens,
            "cost": DocumentCost.of(self.cost),
        }
        if self.max_delay is not None:
            options["max_delay"] = self.max_delay
        if self.thresholds:
            return PackingOptions(thresholds=self.thresholds, **options)
        return SteadyOptions(**options)

    @cached_property
    def sharing(self) -> DynamicContext:
        """Options of the planner under "dynamic"."""
        return DynamicContext(
            ranks=self.ranks or 1,
            tokens_per_rank=self.planning.cap,
            cost=self.planning.cost,
            exchange=self.exchange,
        )

    @property
    def max_length(self) -> int | None:
        return self.sharing.capacity if self.dynamic else self.planning.cap

    @property
    def limit(self) -> MemoryLimit | None:
        if self.dynamic:  # what a rank reads is not what it trains on
            return None
        return MemoryLimit(max_tokens=self.planning.cap, packed=True)

    @property
    def max_tokens_per_rank(self) -> int:
        return self.planning.cap

    @property
    def fingerprint(self) -> str:
        left_out = {"ranks"} if self.dynamic else {"ranks", "exchange"}  # others may go on with it
        options = {name: value for name, value in self.options().items() if name not in left_out}
        return f"{type(self).__name__}{options}"

    def explain_too_long(self, sample: str, length: int) -> SampleError:
        if not self.dynamic:
            return super().explain_too_long(sample, length)
        return too_long(sample, length, self.sharing)

    @property
    def looks_ahead(self) -> bool:
        return False  # documents differ, so smaller windows would not make ranks finish together

    def shard(self, lengths: Int64Array, ranks: int) -> Sharding:
        methods = METHODS if self.sharding == "adaptive" else (self.sharding,)
        return shard(lengths, ranks, latency=self.latency, methods=methods, even=self.dynamic)

    def share(self, messages: Int64Array) -> SharedStep:
        return share(messages, self._budget(len(messages)), self.sharing)

    def _budget(self, ranks: int) -> int:
        return ranks * self.context * self.micro_batches

    def propose(self, window: Window) -> Proposal:
        options = self.planning
        if self.dynamic:
            offered = offer(window.lengths, self._budget(1))
            return Proposal(offered, Groups.of([np.arange(len(window))]), window)
        arrived = self._arrived(window)
        costs = options.cost.of_documents(window.lengths)
        classes = length_classes(window.lengths, options.thresholds)
        own, ages = classes[arrived], window.ages[arrived]
        queues = len(options.thresholds)
        waiting, heads = queue_heads(own, ages, queues)
        first = [int(costs[arrived[own == c][:1]].sum()) for c in range(1, queues + 1)]
        last = window.exhausted and len(arrived) == len(window)
        left = len(drain(window.lengths, options)) if last else 0
        message = np.array(
            [
                len(window),
                int(last),
                left,
                int(costs[arrived[own == 0]].sum()),
                *waiting.tolist(),
                *heads.tolist(),
                *first,
            ],
            np.int64,
        )
        # Groups are formed only once all ranks have sent what waits: until then all is one group.
        pool = Groups.of([np.arange(len(window))])
        return Proposal(message, pool, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        if self.dynamic:
            counts = taken(messages, self._budget(len(messages)))
            return Plan(Groups.of([np.arange(counts[rank])]))
        active = messages[messages[:, _SAMPLES] > 0]
        if active[:, _LAST].all():
            steps = min(int(active[:, _STEPS_LEFT].max()), int(active[:, _SAMPLES].min()))
            return self._last(window, steps)
        arrived = self._arrived(window)
        if len(messages) > 1:
            groups = self._to_target(window, self._agree(active))
        else:
            own = plan_step(self.planning, window.lengths[arrived], window.ages[arrived])
            groups = Groups(arrived[own.members], own.offsets)
        groups = self._in_order(groups, window)
        return Plan(groups, steps=np.array([0, len(groups)]), waited=arrived)

    def _to_target(self, window: Window, agreed: _Agreement) -> Groups:
        """Micro-batches that cost as close to the target as documents allow: outliers of the
        released class, documents that have waited too long, and of the others the oldest that
        fit."""
        options = self.planning
        costs = options.cost.of_documents(window.lengths)
        classes = length_classes(window.lengths, options.thresholds)
        overdue = options.overdue(window.ages)
        chosen = overdue.copy()
        if agreed.released_class:
            queue = np.flatnonzero(classes == agreed.released_class)
            nearest = np.argsort(np.abs(costs[queue] - agreed.outlier_cost), kind="stable")
            chosen[queue[nearest[: self.micro_batches]]] = True
        left = agreed.target * self.micro_batches - int(costs[chosen].sum())
        room = options.cap * self.micro_batches - int(window.lengths[chosen].sum())
        candidates = np.flatnonzero(~chosen & (classes == 0))
        pairs = zip(costs[candidates].tolist(), window.lengths[candidates].tolist())
        for position, (cost, length) in zip(candidates.tolist(), pairs):
            if cost <= left and length <= room:
                chosen[position] = True
                left, room = left - cost, room - length
        if not chosen.any():
            chosen[0] = True
        return fill(window.lengths, costs, chosen, overdue, options, ordinary=classes == 0)

    def _arrived(self, window: Window) -> Int64Array:
        """Positions of the documents that have waited, and of one step's worth of the new ones, or
        of as many as are buffered."""
        new = np.flatnonzero(window.ages == 0)
        held = window.lengths[new].cumsum()
        count = int(np.searchsorted(held, self.context * self.micro_batches)) + 1
        return np.sort(np.concatenate([np.flatnonzero(window.ages > 0), new[:count]]))

    def _agree(self, messages: Int64Array) -> _Agreement:
        """What all ranks do in this step, computed from the messages of those that have samples."""
        queues = len(self.thresholds)
        table = messages[:, _ORDINARY + 1 :].reshape(len(messages), 3, queues)
        waiting, heads, costs = table.transpose(1, 0, 2)  # each [ranks, queues]
        ordinary = int(messages[:, _ORDINARY].mean()) // self.micro_batches
        released = class_to_release(waiting, heads, self.micro_batches) if queues else 0
        if not released:
            return _Agreement(0, 0, ordinary)
        oldest = heads[:, released - 1].argmax()
        outlier_cost = int(costs[oldest, released - 1])
        return _Agreement(released, outlier_cost, ordinary + outlier_cost)

    def _last(self, window: Window, steps: int) -> Plan:
        """Everything that is left, or what the first `steps` steps of it hold."""
        drained = drain(window.lengths, self.planning, steps=steps)
        if len(drained) < steps:  # this rank needs fewer steps, and has documents enough
            drained = _split(drained, steps)
        parts = [self._in_order(part, window) for part in drained[:steps]]
        micro_batches = [part.group(k) for part in parts for k in range(len(part))]
        return Plan(Groups.of(micro_batches), steps=np.cumsum([0, *map(len, parts)]))

    def _in_order(self, groups: Groups, window: Window) -> Groups:
        if self.schedule is None or not len(groups):
            return groups
        costs = self.planning.cost(groups.shapes(window.lengths), packed=True)
        return groups.take(order_micro_batches(costs, self.schedule))


@dataclass(frozen=True)
class _Agreement:
    """What all ranks of a step agree on."""

    released_class: int
    """The class of outliers to plan, 0 for none."""
    outlier_cost: int
    """Cost of its oldest outlier on any rank, which the others should be close to; 0 without."""
    target: int
    """Cost of a micro-batch."""


def _split(steps: list[Groups], count: int) -> list[Groups]:
    """More steps from the same documents: the one with most micro-batches, or else with most
    documents, is divided in two until there are `count`."""
    steps = list(steps)
    while len(steps) < count:
        at = max(range(len(steps)), key=lambda i: (len(steps[i]), len(steps[i].members)))
        whole = steps[at]
        if len(whole) > 1:
            half = len(whole) // 2
            order = np.arange(len(whole))
            steps[at : at + 1] = [whole.take(order[:half]), whole.take(order[half:])]
        else:
            half = len(whole.members) // 2
            parts = (whole.members[:half], whole.members[half:])
            steps[at : at + 1] = [Groups.of([part]) for part in parts]
    return steps
