"""The state machine: what ranks learn of a step, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import MemoryLimit
from evenstep.errors import ConfigurationError, InvariantError, MismatchError
from evenstep.plan import FixedBatch, Groups, Plan, Policy, Proposal, TokenBudget
from evenstep.protocol import EpochOptions, RankProtocol
from worlds import POLICIES, SHARDS, play


@given(POLICIES, SHARDS, st.integers(1, 25))
def test_all_ranks_learn_the_same_of_every_step(policy, shards, buffer_size):
    _, steps, _ = play(policy, shards, buffer_size=buffer_size)
    for same in zip(*steps):
        for rank, step in enumerate(same):
            assert step.totals == same[0].totals
            lengths = [shards[rank][number] for number in step.members.tolist()]
            assert step.totals.samples[rank] == len(lengths)
            assert step.totals.tokens[rank] == sum(lengths)
            groups = [[shards[rank][n] for n in m.tolist()] for m in step.micro_batches]
            assert len(groups) <= policy.micro_batches
            padded = sum(sum(g) if policy.packed else len(g) * max(g) for g in groups)
            assert step.totals.padded_tokens[rank] == padded
            every = step.round.start.labels == "every"
            supervised = sum(n // 2 + (every and n % 3 == 1) for n in lengths)
            assert step.totals.supervised_tokens[rank] == supervised
            assert step.filler == (not lengths)


@pytest.mark.parametrize(
    ("differing", "named"),
    [
        ({"policy": FixedBatch(3)}, "policy"),
        ({"policy": TokenBudget(64)}, "policy"),
        ({"seed": 1}, "seed"),
        ({"epoch": 1}, "epoch"),
        ({"buffer_size": 6}, "buffer_size"),
        ({"exhausted": "stop"}, "exhausted"),
        ({"accumulate": 2}, "accumulate"),
        ({"others": {"dataset size": 7}}, "dataset size"),
    ],
)
def test_ranks_that_were_built_differently_all_say_so(differing, named):
    common = {"policy": FixedBatch(2), "world_size": 2, "buffer_size": 4}
    machines = [
        RankProtocol(EpochOptions(**{**common, **(differing if rank else {})}), rank=rank)
        for rank in range(2)
    ]
    messages = [machine.outgoing() for machine in machines]
    for machine in machines:
        with pytest.raises(MismatchError, match=f"ranks differ in {named}: rank 0 has .* rank 1"):
            machine.incoming(messages)


@dataclass(frozen=True)
class Broken(Policy):
    how: str = ""

    @property
    def limit(self):
        return MemoryLimit(max_tokens=14)

    def propose(self, window):
        groups = Groups(np.arange(len(window)), np.arange(len(window) + 1))
        return Proposal(np.zeros(1, np.int64), groups, window)

    def settle(self, proposal, messages, rank):
        groups = proposal.groups
        if self.how == "twice":
            return Plan(Groups(np.array([0, 0]), np.array([0, 1, 2])))
        if self.how == "nothing":
            return Plan(Groups.empty())
        if self.how == "out of nowhere":
            return Plan(Groups(np.array([len(proposal.window)]), np.array([0, 1])))
        if self.how == "before the first":
            return Plan(Groups(np.array([-1]), np.array([0, 1])))
        if self.how == "dropped too":
            return Plan(Groups(np.array([0]), np.array([0, 1])), np.array([0]))
        return Plan(groups.take(np.arange(1 + rank)))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("twice", "a sample twice"),
        ("nothing", "planned nothing"),
        ("out of nowhere", "not in the window"),
        ("before the first", "not in the window"),
        ("dropped too", "a sample twice"),
        ("unequal", "rank 0 planned 1 steps, and rank 1 2"),
    ],
)
def test_a_policy_that_breaks_its_contract_is_an_error(how, said):
    with pytest.raises(InvariantError, match=said):
        play(Broken(how), [[5] * 6, [5] * 6], buffer_size=4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rank": 2}, "rank=2"),
        ({"buffer_size": 0}, "buffer_size=0"),
        ({"world_size": 0}, "world_size=0"),
        ({"exhausted": "join"}, "exhausted='join'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, named):
    options = {"policy": FixedBatch(1), "world_size": 2, "buffer_size": 4, **arguments}
    rank = options.pop("rank", 0)
    with pytest.raises(ConfigurationError, match=named):
        RankProtocol(EpochOptions(**options), rank=rank)
