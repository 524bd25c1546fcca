"""`WorkloadPacking`: pretraining documents in micro-batches of equal cost, on all ranks.

Each round is one step: `micro_batches` packed micro-batches on every rank. Ranks exchange what
their windows hold in sum, and their dearest documents one by one. From that all compute the same
aim: which outliers are planned, and what every micro-batch of the step should cost. Each rank then
fills its own micro-batches to that cost. One rank does the same alone. Once no rank receives
documents any more, everything that is left is planned, in as few steps as all ranks need.

Invariants: no micro-batch holds more than `max_tokens`; documents that a plan leaves out stay in
the window, in order, so that the window is all the state there is; the size of a message does not
depend on that of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, MemoryLimit
from evenstep.plan.groups import Groups
from evenstep.plan.packing.fill import drain, fill
from evenstep.plan.packing.outliers import agree, listed, named
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions
from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.sharding.adaptive import METHODS, shard
from evenstep.plan.sharding.sharding import KernelLatency, Sharding, TileLatency
from evenstep.plan.value_checks import check_at_least, check_one_of

# Columns of a message: samples of the window, steps that it needs if nothing is added to it, 0 if
# something will be, its tokens and cost. The rest is what `named` makes.
_SAMPLES, _LEFT, _TOKENS, _COST, _NAMES = range(5)

_WINDOW = 4
"""Steps' worth of tokens that a window holds by default."""


@dataclass(frozen=True)
class WorkloadPacking(Policy):
    """Packed micro-batches of equal cost on all ranks, long documents delayed (WLB-LLM, section 4).

    A document that alone costs more than a micro-batch of the others is an outlier. It waits until
    every rank has one like it for each of its micro-batches.
    """

    context: int
    """Tokens that a micro-batch holds on average, in steps without outliers. In a step with
    outliers all micro-batches cost as much as the dearest of them, so those with a shorter one hold
    more, up to `max_tokens`: such steps cost more than others, and hold up to 1.25 x `context`."""
    micro_batches: int = field(kw_only=True)
    """Micro-batches of a step on each rank, at most. If a rank has fewer documents left than that,
    the loader adds micro-batches of ``loss_scale`` 0."""
    max_tokens: int | None = field(default=None, kw_only=True)
    """Tokens that no micro-batch exceeds: 1.25 x context by default, and at least 1.1 x. A longer
    document is too long: see `evenstep.plan.too_long`."""
    max_delay: int | None = field(default=None, kw_only=True)
    """Rounds after which an outlier is planned, whatever that does to balance: 256 by default. Only
    the very longest documents wait so long, on many ranks; where more do, steps are less even."""
    cost: Cost = field(default=DocumentCost(), kw_only=True)
    """Cost of a micro-batch: a `DocumentCost`, or a cost that has `per_token` and `per_pair`."""
    schedule: PipelineSchedule | None = field(default=None, kw_only=True)
    """The pipeline to order micro-batches for; None leaves the most costly first."""
    context_parallel: int = field(default=1, kw_only=True)
    """Ranks that share every micro-batch (WLB-LLM, section 5). They are neighbours in the loader's
    process group: its first `context_parallel` ranks are the first data-parallel rank."""
    sharding: str = field(default="adaptive", kw_only=True)
    """How they share it: "per-sequence", "per-document", "hybrid", or "adaptive", which takes for
    each micro-batch the one of these whose slowest rank is predicted to be fastest."""
    latency: KernelLatency = field(default=TileLatency(), kw_only=True)
    """Prediction used by "adaptive": tiles, or a measure of one's own."""
    packed: bool = field(default=True, init=False)

    looks_ahead = False  # documents differ, so smaller windows would not make ranks finish together

    def __post_init__(self) -> None:
        check_at_least(1, context_parallel=self.context_parallel)
        check_one_of(("adaptive", *METHODS), sharding=self.sharding)
        _ = self.planning  # raises if an option is wrong

    @cached_property
    def planning(self) -> PackingOptions:
        """Limits of a step."""
        return PackingOptions(
            context=self.context,
            micro_batches=self.micro_batches,
            max_tokens=self.max_tokens,
            cost=DocumentCost.of(self.cost),
            **({} if self.max_delay is None else {"max_delay": self.max_delay}),
        )

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.planning.cap, packed=True)

    @property
    def deals_on_demand(self) -> bool:
        return self.context_parallel == 1

    @property
    def window_tokens(self) -> int:
        return _WINDOW * self.context * self.micro_batches

    def shard(self, lengths: Int64Array) -> Sharding:
        """How ranks share a row of documents.

        Args:
            lengths: [documents] int64 tokens of each as they lie in the row, padding included.
        """
        methods = METHODS if self.sharding == "adaptive" else (self.sharding,)
        return shard(lengths, self.context_parallel, latency=self.latency, methods=methods)

    def propose(self, window: Window) -> Proposal:
        options = self.planning
        # Groups are formed only once all ranks have sent what waits: until then all is one group.
        pool = Groups.of([np.arange(len(window))])
        sums = [
            len(window),
            len(drain(window.lengths, options)) if window.exhausted else 0,
            int(window.lengths.sum()),
            int(options.cost.of_documents(window.lengths).sum()),
        ]
        names = named(window.lengths, window.ages, options)
        return Proposal(np.concatenate([np.array(sums, np.int64), names]), pool, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window, options = proposal.window, self.planning
        active = messages[messages[:, _SAMPLES] > 0]
        if active[:, _LEFT].all():
            steps = min(int(active[:, _LEFT].max()), int(active[:, _SAMPLES].min()))
            return self._last(window, steps)
        tokens, cost = (sum(active[:, column].tolist()) for column in (_TOKENS, _COST))
        aim = agree(tokens, cost, active[:, _NAMES:], options)
        own = aim.released[int((messages[:rank, _SAMPLES] > 0).sum())]
        groups = fill(
            window.lengths,
            window.ages,
            options,
            released=listed(window.lengths, window.ages, options)[own[own >= 0]],
            level=aim.level,
            cost=aim.cost,
        )
        return Plan(self._in_order(groups, window), steps=np.array([0, len(groups)]))

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
