"""Every policy that the command line knows, with the same memory; and ranks that run it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from evenstep.arrays import Int64Array
from evenstep.cost import PaddedTokenCost
from evenstep.plan import Lengths, Plan, Policy, Proposal, Window
from evenstep.plan.delegating_policy import DelegatingPolicy
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions
from evenstep.protocol import RankProtocol
from evenstep.tools.simulate.rank import SimulatedRank

_ROUNDS = 8
"""Rounds that are planned before one is chosen, at most."""


def build(name: str, *, max_tokens: int, longest: int, lengths: Int64Array) -> Policy:
    """A policy with a budget of tokens, or of as many samples as fit in it if all were `longest`.

    Args:
        name: a key of `POLICIES`.
        lengths: [samples] of the whole data set, for policies that need them in advance.
    """
    options = PolicyOptions(
        max_tokens=max_tokens,
        batch_size=max(1, max_tokens // longest),
        cost=PaddedTokenCost(),
        lengths=Lengths(lengths),
    )
    return POLICIES[name](options)


def make_ranks(
    policy: Policy, lengths: Int64Array, *, buffer_size: int, seed: int
) -> list[SimulatedRank]:
    """Ranks at the begin of an epoch, as `simulate` runs them: where the policy says so, they share
    one stream, which is dealt out to them on demand.

    Args:
        lengths: [ranks, samples] of each rank's share, or that make the stream.
    """
    world_size, share = lengths.shape
    stream = lengths.T.ravel() if policy.deals_on_demand else None
    return [
        SimulatedRank(
            RankProtocol(
                policy=policy,
                rank=rank,
                world_size=world_size,
                buffer_size=buffer_size,
                seed=seed,
                share=share,
                entries=None if stream is None else len(stream),
            ),
            own if stream is None else own[:0],
            stream,
        )
        for rank, own in enumerate(lengths)
    ]


def exchange(ranks: list[SimulatedRank]) -> None:
    """Brings every rank's message to all."""
    messages = [rank.outgoing() for rank in ranks]
    for rank in ranks:
        rank.incoming(messages)


@dataclass(frozen=True)
class _Round:
    """What rank 0 planned with."""

    window: Window
    messages: Int64Array
    planned: int


class _Recorded(DelegatingPolicy):
    """Delegates to a policy, and keeps the rounds of rank 0."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.rounds: list[_Round] = []

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        plan = super().settle(proposal, messages, rank)
        if rank == 0:
            self.rounds.append(_Round(proposal.window, messages, len(plan.groups.members)))
        return plan


class PlanningCase:
    """What one rank of W computes for its next steps, given the other ranks' messages.

    The round is one in the middle of an epoch, when windows hold what earlier rounds left in them.
    """

    WINDOWS = 4
    """Windows of each rank in that epoch."""

    def __init__(self, policy: Policy, lengths: Int64Array, buffer: int, seed: int) -> None:
        """
        Args:
            lengths: [ranks, samples] `WINDOWS` windows of each rank; where the policy plans
                offline, all samples of the data set.
            buffer: samples of a window.
        """
        self.policy, self.seed = policy, seed
        self.lengths = lengths
        if policy.lengths is not None:
            self.planned = lengths.shape[1]
            return
        recorded = _Recorded(policy)
        ranks = make_ranks(recorded, lengths, buffer_size=buffer, seed=seed)
        while len(recorded.rounds) < _ROUNDS and not ranks[0].protocol.finished:
            for rank in ranks:
                rank.fill()
            exchange(ranks)
        full = [each for each in recorded.rounds if not each.window.exhausted]
        self.round = full[len(full) // 2]
        self.planned = self.round.planned

    def run(self) -> float:
        """Seconds of CPU time, for `planned` samples of the rank."""
        begin = time.thread_time()
        if self.policy.lengths is None:
            proposal = self.policy.propose(self.round.window)
            self.policy.settle(proposal, self.round.messages, 0)
        else:
            self.policy.deal(self.lengths.ravel(), len(self.lengths), seed=self.seed, epoch=0)
        return time.thread_time() - begin
