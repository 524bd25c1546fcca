"""Every policy that the command line knows, with the same memory."""

from __future__ import annotations

import time

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import PaddedTokenCost
from evenstep.plan import Lengths, Policy, Window
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions


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


class PlanningCase:
    """What one rank of W computes for its next steps, given the other ranks' messages."""

    def __init__(self, policy: Policy, lengths: Int64Array, seed: int) -> None:
        """
        Args:
            lengths: [ranks, samples] of each rank's window. A policy that plans offline takes
                them all for the whole data set.
        """
        self.policy, self.seed = policy, seed
        self.lengths = lengths
        size = min(policy.window_size(lengths.shape[1]), lengths.shape[1])
        self.windows = [
            Window(lengths=own[:size], ages=np.zeros(size, np.int64), seed=seed) for own in lengths
        ]
        self.planned = lengths.shape[1]
        if policy.lengths is None:
            proposals = [policy.propose(window) for window in self.windows]
            self.messages = np.stack([proposal.message for proposal in proposals])
            plan = policy.settle(proposals[0], self.messages, 0)
            self.planned = len(plan.groups.members)

    def run(self) -> float:
        """Seconds of CPU time, for `planned` samples of the rank."""
        begin = time.thread_time()
        if self.policy.lengths is None:
            proposal = self.policy.propose(self.windows[0])
            self.policy.settle(proposal, self.messages, 0)
        else:
            self.policy.deal(self.lengths.ravel(), len(self.lengths), seed=self.seed, epoch=0)
        return time.thread_time() - begin
