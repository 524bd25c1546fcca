"""A whole epoch of W ranks in one process, over lengths alone.

The ranks are the `RankProtocol` machines that also drive the loader. Only the transport differs: an
exchange is a list of bytes. So a simulation makes the steps that a training job with the same
shards, policy, buffer and seed would make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.delegating_policy import DelegatingPolicy
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.replay import ReplayPolicy
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator
from evenstep.protocol import RankProtocol
from evenstep.protocol.planned_step import PlannedStep
from evenstep.tools.simulate.result import SimulationResult

__all__ = ["deal", "simulate"]


def deal(count: int, world_size: int, seed: int = 0) -> list[Int64Array]:
    """Shards a data set as a distributed sampler does: shuffles it, repeats the first few samples
    so that all ranks get equally many, and gives rank r every W-th sample from the r-th on.

    Returns:
        For each rank, [ceil(count / world_size)] int64 identities from 0 to ``count - 1``.
    """
    check_at_least(1, count=count, world_size=world_size)
    order = generator(seed, RandomStream.SIMULATED_SHARDS).permutation(count)
    even = np.resize(order, -(-count // world_size) * world_size)
    return [even[rank::world_size] for rank in range(world_size)]


def simulate(
    policy: Policy,
    lengths_per_rank: Sequence[Int64Array],
    *,
    buffer_size: int = 1024,
    exhausted: str = "pad",
    seed: int = 0,
    cost: Cost | None = None,
    identities: Sequence[Int64Array] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Runs one epoch to its end.

    Args:
        policy: the policy to measure.
        lengths_per_rank: for each rank, [samples] int64 lengths in order of arrival. Ranks may have
            unequally many, or none. An offline policy deals out its own `lengths` instead, to as
            many ranks.
        buffer_size: samples a rank may hold in its window.
        exhausted: "pad" or "stop"; see `RankProtocol`.
        seed: seed of the epoch.
        cost: cost model behind imbalance and efficiency; by default the policy's own.
        identities: for each rank, [samples] int64 identity of each sample. By default all differ.
        progress: called after each round with samples emitted so far and samples in all.

    Raises:
        ConfigurationError: no samples, or an argument out of range.
        SampleError: a sample is longer than the policy accepts.
    """
    shards = [np.asarray(lengths, np.int64) for lengths in lengths_per_rank]
    plan_seconds = 0.0
    own_policies: list[Policy] = [policy] * len(shards)
    if policy.lengths is not None:
        begin = time.thread_time()
        dealt = policy.deal(policy.lengths.values, len(shards), seed=seed, epoch=0)
        plan_seconds = (time.thread_time() - begin) * len(
            shards
        )  # every rank plans the whole epoch
        own_policies = [ReplayPolicy(policy, groups.offsets[1:]) for groups in dealt]
        identities = [groups.members for groups in dealt]
        shards = [policy.lengths.values[members] for members in identities]
    sizes = [len(shard) for shard in shards]
    if not sum(sizes):
        raise ConfigurationError(f"{len(shards)} ranks and no samples; give at least one sample")
    _check_lengths(policy, shards)
    if identities is None:
        identities = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    elif [len(shard) for shard in identities] != sizes:
        raise ConfigurationError(
            f"{[len(shard) for shard in identities]} identities for {sizes} lengths per rank"
        )
    clocked = [_Clocked(own) for own in own_policies]
    ranks = [
        _Rank(
            RankProtocol(
                policy=clocked[rank],
                rank=rank,
                world_size=len(shards),
                buffer_size=buffer_size,
                exhausted=exhausted,
                seed=seed,
                share=len(shard),
            ),
            shard,
        )
        for rank, shard in enumerate(shards)
    ]
    total = sum(sizes)
    sent: list[int] = []
    while not _all_finished(ranks):
        for rank in ranks:
            rank.fill()
        messages = [rank.outgoing() for rank in ranks]
        sent.append(sum(map(len, messages)))
        for rank in ranks:
            rank.incoming(messages)
        if progress is not None:
            progress(sum(rank.protocol.emitted for rank in ranks), total)
    plan_seconds += sum(one.seconds for one in clocked)
    return _measure(policy, cost or policy.cost, ranks, identities, sum(sent[1:]), plan_seconds)


def _check_lengths(policy: Policy, shards: Sequence[Int64Array]) -> None:
    limit = policy.max_length
    for rank, shard in enumerate(shards):
        if len(shard) and shard.min() < 1:
            raise ConfigurationError(f"rank {rank} has a length of {shard.min()}, below 1")
        if limit is not None and len(shard) and shard.max() > limit:
            position = int(shard.argmax())
            name = f"sample {position} of rank {rank}"
            raise policy.explain_too_long(name, int(shard[position]))


class _Clocked(DelegatingPolicy):
    """Delegates to a policy, and measures the time spent in it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.seconds = 0.0

    def propose(self, window: Window) -> Proposal:
        begin = time.thread_time()
        proposal = self.policy.propose(window)
        self.seconds += time.thread_time() - begin
        return proposal

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        begin = time.thread_time()
        plan = self.policy.settle(proposal, messages, rank)
        self.seconds += time.thread_time() - begin
        return plan


class _Rank:
    """One rank: its protocol, its shard, and the steps made so far."""

    def __init__(self, protocol: RankProtocol, lengths: Int64Array) -> None:
        self.protocol = protocol
        self.lengths = lengths
        self.arrival_steps = np.zeros(len(lengths), np.int64)
        self.steps: list[PlannedStep] = []
        self.seconds = 0.0

    def fill(self) -> None:
        protocol = self.protocol
        while protocol.wanted:
            begin = protocol.received
            new = self.lengths[begin : begin + protocol.wanted]
            if not len(new):
                protocol.end_of_source()
                return
            self.arrival_steps[begin : begin + len(new)] = protocol.steps
            # All tokens are supervised; patches are not recorded in lengths.
            protocol.receive(np.stack([new, new, np.zeros_like(new)], axis=1))

    def outgoing(self) -> bytes:
        begin = time.thread_time()
        message = self.protocol.outgoing()
        self.seconds += time.thread_time() - begin
        return message

    def incoming(self, messages: Sequence[bytes]) -> None:
        begin = time.thread_time()
        steps = self.protocol.incoming(messages)
        self.seconds += time.thread_time() - begin
        self.steps += steps

    @property
    def undelivered(self) -> int:
        """Samples left in the window or in the source when the epoch stopped."""
        return self.protocol.undelivered + len(self.lengths) - self.protocol.received

    def groups(self) -> tuple[Groups, Int64Array]:
        """Groups of arrival numbers, step after step, and the step that each belongs to."""
        pairs = [(group, step.index) for step in self.steps for group in step.micro_batches]
        members = [group for group, _ in pairs]
        offsets = np.cumsum([0, *map(len, members)])
        groups = Groups(np.concatenate([np.empty(0, np.int64), *members]), offsets)
        return groups, np.array([index for _, index in pairs], np.int64)


def _all_finished(ranks: Sequence[_Rank]) -> bool:
    finished = {rank.protocol.finished for rank in ranks}
    if len(finished) > 1:
        raise InvariantError("some ranks have finished the epoch and others have not")
    return finished.pop()


def _measure(
    policy: Policy,
    cost: Cost,
    ranks: Sequence[_Rank],
    identities: Sequence[Int64Array],
    sent: int,
    plan_seconds: float,
) -> SimulationResult:
    """The figures of an epoch that all ranks have finished.

    Args:
        identities: for each rank, [samples] identity of each sample.
        sent: bytes of all messages except the hello.
        plan_seconds: processor time in the policy, all ranks together.
    """
    steps, rounds = ranks[0].protocol.steps, ranks[0].protocol.rounds
    emitted = [_emitted(rank, policy, cost) for rank in ranks]
    costs = np.stack([one.costs for one in emitted], axis=1)  # [steps, ranks]
    largest, mean = costs.max(axis=1, initial=0.0), costs.mean(axis=1)  # [steps]
    real = sum(one.tokens for one in emitted)
    computed = sum(one.computed_tokens for one in emitted)
    useful = sum(one.useful_cost for one in emitted)
    # Identities: each once, how often each was given to the ranks, and how often emitted.
    given, given_counts = np.unique(np.concatenate(list(identities)), return_counts=True)
    names = [names[one.members] for one, names in zip(emitted, identities)]
    emitted_counts = np.bincount(
        np.searchsorted(given, np.concatenate(names)), minlength=len(given)
    )  # [identities]
    count = int(emitted_counts.sum())
    return SimulationResult(
        policy=policy.name,
        world_size=len(ranks),
        samples=len(given),
        steps=steps,
        rounds=rounds,
        padding=1 - real / computed if steps else 0.0,
        imbalance=float(largest.sum() / mean.sum()) if steps else 1.0,
        imbalance_p95=float(np.quantile(largest / mean, 0.95)) if steps else 1.0,
        efficiency=useful / (len(ranks) * float(largest.sum())) if steps else 0.0,
        samples_per_step=count / max(steps, 1),
        tokens_per_step=real / max(steps, 1),
        emitted=count,
        missing=int((emitted_counts == 0).sum()),
        duplicates=int(np.maximum(emitted_counts - given_counts, 0).sum()),
        sampler_padding=int((given_counts - 1).sum()),
        dropped=sum(rank.protocol.dropped for rank in ranks),
        undelivered=sum(rank.undelivered for rank in ranks),
        filler_steps=sum(step.filler for rank in ranks for step in rank.steps),
        max_delay_steps=max(one.max_delay for one in emitted),
        plan_us_per_sample=1e6 * plan_seconds / max(count, 1),
        round_us_per_sample=1e6 * sum(rank.seconds for rank in ranks) / max(count, 1),
        message_bytes_per_round=sent / len(ranks) / max(rounds, 1),
        costs=costs,
    )


@dataclass(frozen=True, kw_only=True)
class _Emitted:
    """Everything that one rank emitted."""

    members: Int64Array
    """[emitted] arrival numbers."""
    costs: Float64Array
    """[steps] cost of the rank's groups; 0 for a filler step."""
    tokens: int
    computed_tokens: int
    """`tokens` and padding."""
    useful_cost: float
    """Cost of each sample by itself, without padding."""
    max_delay: int
    """Steps that the sample which waited longest has waited."""


def _emitted(rank: _Rank, policy: Policy, cost: Cost) -> _Emitted:
    groups, made = rank.groups()  # made: [groups] step of each
    members, costs = groups.members, np.zeros(rank.protocol.steps)
    if not len(groups):
        return _Emitted(
            members=members, costs=costs, tokens=0, computed_tokens=0, useful_cost=0.0, max_delay=0
        )
    shapes = groups.shapes(rank.lengths)
    np.add.at(costs, made, cost(shapes, packed=policy.packed))
    alone = GroupShapes.measure(rank.lengths[members], np.arange(len(members) + 1))
    waited = np.repeat(made, groups.sizes) - rank.arrival_steps[members]  # [emitted] steps
    return _Emitted(
        members=members,
        costs=costs,
        tokens=int(shapes.tokens.sum()),
        computed_tokens=int((shapes.tokens if policy.packed else shapes.padded).sum()),
        useful_cost=float(cost(alone, packed=True).sum()),
        max_delay=int(waited.max()),
    )
