"""The state machine, driven by every order of events that a transport can produce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import MemoryLimit
from evenstep.errors import ConfigurationError, InvariantError, MismatchError, PeerError
from evenstep.plan import FixedBatch, Groups, Plan, Policy, Proposal, TokenBudget
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.wire import abort_message
from worlds import POLICIES, SHARDS, columns, play


@given(POLICIES, SHARDS, st.integers(1, 25), st.randoms(use_true_random=False))
def test_every_sample_is_emitted_once_and_every_rank_makes_the_same_steps(
    policy, shards, buffer_size, random
):
    machines, steps, exchanges = play(
        policy,
        shards,
        buffer_size=buffer_size,
        chunk=lambda: random.randint(1, 7),
        pushes=lambda: random.random() < 0.3,
    )
    assert len({len(own) for own in steps}) == 1
    for shard, machine, own in zip(shards, machines, steps):
        emitted = [number for step in own for number in step.members.tolist()]
        assert len(set(emitted)) == len(emitted) == machine.emitted
        assert machine.pending == machine.undelivered == 0
        assert machine.emitted + machine.dropped == len(shard)
        if not getattr(policy, "drop_last", False):
            assert sorted(emitted) == list(range(len(shard)))
        assert [step.index for step in own] == list(range(len(own)))
    # Theorem 4: each round but those in which a rank only drops emits a sample on every rank that
    # has any; a round is two exchanges, and there is one hello and one farewell.
    longest = max(len(shard) for shard in shards)
    assert exchanges <= 2 + 2 * longest


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


@given(POLICIES, SHARDS, st.integers(1, 25))
def test_stop_ends_all_ranks_together_and_makes_no_filler(policy, shards, buffer_size):
    machines, steps, _ = play(policy, shards, buffer_size=buffer_size, exhausted="stop")
    assert len({len(own) for own in steps}) == 1
    assert not any(step.filler for own in steps for step in own)
    for machine, own in zip(machines, steps):
        assert machine.emitted == sum(len(step.members) for step in own)
        assert machine.pending == 0
    if min(map(len, shards)) == 0:
        assert steps[0] == []


def pair(**differing):
    common = {"policy": FixedBatch(2), "world_size": 2, "buffer_size": 4}
    return [
        RankProtocol(EpochOptions(**{**common, **(differing if rank else {})}), rank=rank)
        for rank in range(2)
    ]


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
    machines = pair(**differing)
    messages = [machine.outgoing() for machine in machines]
    for machine in machines:
        with pytest.raises(MismatchError, match=f"ranks differ in {named}: rank 0 has .* rank 1"):
            machine.incoming(messages)


@given(
    POLICIES, st.lists(st.integers(0, 12), min_size=2, max_size=5), st.sampled_from("AL"), st.data()
)
def test_a_rank_that_fails_or_leaves_at_any_exchange_is_named_by_all(policy, counts, how, data):
    machines = [
        RankProtocol(EpochOptions(policy=policy, world_size=len(counts), buffer_size=6), rank=rank)
        for rank in range(len(counts))
    ]
    culprit = data.draw(st.integers(0, len(counts) - 1))
    good = data.draw(st.integers(0, 12))
    for machine, count in zip(machines, counts):
        machine.receive(columns([7] * count))
        machine.end_of_source()
    for _ in range(good):
        messages = [machine.outgoing() for machine in machines]
        for machine in machines:
            machine.incoming(messages)
        if machines[0].finished:
            return
    messages = [machine.outgoing() for machine in machines]
    messages[culprit] = abort_message("sample 3") if how == "A" else b""
    for machine in machines:
        said = f"rank {culprit} failed: sample 3" if how == "A" else f"rank {culprit} left epoch 0"
        with pytest.raises(PeerError, match=said):
            machine.incoming(messages)


def test_ranks_in_different_places_raise():
    ahead, behind = pair()
    hello = [ahead.outgoing(), behind.outgoing()]
    ahead.incoming(hello)
    ahead.end_of_source()
    with pytest.raises(MismatchError, match="every rank must use its loaders in the same order"):
        ahead.incoming([ahead.outgoing(), hello[1]])


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
