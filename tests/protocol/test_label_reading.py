"""How models read labels is decided once, by all ranks' samples, before anything is counted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan import FixedBatch
from evenstep.plan.label_reading import FIRST, UNSHIFTED
from evenstep.protocol import EpochOptions, RankProtocol, RoundStart

COPY, CLASSES, MASKED = FIRST, FIRST | UNSHIFTED, 0
"""What samples show: labels that are a copy of their tokens, others, and a masked first label."""


def run(shards, *, labels=None, buffer_size=4):
    """Ranks over samples of 10 tokens, 9 of them supervised; what each shows is given. Returns the
    machines and the rounds' (labels, supervised tokens by rank); stops at a contradiction."""
    machines = [
        RankProtocol(
            EpochOptions(policy=FixedBatch(2), world_size=len(shards), buffer_size=buffer_size),
            rank=rank,
            start=RoundStart.empty(labels=labels),
        )
        for rank in range(len(shards))
    ]
    rounds = []
    for machine, shard in zip(machines, shards):
        machine.receive(np.array([[10, 9, 0, 0, 0, shows] for shows in shard]).reshape(-1, 6))
        machine.end_of_source()
    while not machines[0].finished:
        messages = [machine.outgoing() for machine in machines]
        if any(machine.contradicting is not None for machine in machines):
            break
        made = [machine.incoming(messages) for machine in machines]
        if steps := made[0]:
            assert len({tuple(s.round.start.labels or "?" for s in own) for own in made}) == 1
            totals = [steps[0].round.totals.supervised_tokens.sum(axis=1).tolist()]
            rounds.append((steps[0].round.start.labels, *totals))
            # What a rank collates by is what it has told the others, and what is true.
            for shard, own, told in zip(shards, made, totals[0]):
                members = [n for s in own if not s.filler for n in s.members.tolist()]
                every = own[0].round.start.labels == "every"
                assert told == sum(9 + (shard[n] & FIRST) * every for n in members)
                counted = [s.columns_of(s.members)[1].sum() for s in own if not s.filler]
                assert told == sum(counted)
    return machines, rounds


def test_a_proof_on_one_rank_decides_for_all_before_anything_is_counted():
    _, rounds = run([[COPY] * 4, [MASKED, COPY, CLASSES, MASKED]])
    assert rounds == [("every", [40, 38])]


def test_a_proof_after_copies_were_counted_as_causal_is_named_by_the_rank_that_has_it():
    machines, rounds = run([[COPY] * 8, [COPY] * 6 + [CLASSES, COPY]])
    assert rounds == [("causal", [36, 36])]
    assert [machine.contradicting for machine in machines] == [None, 6]


def test_what_was_said_or_decided_before_holds():
    # With an option, samples show nothing: their counts are final.
    assert run([[MASKED] * 4], labels="causal")[1] == [("causal", [36])]
    assert run([[COPY] * 4], labels="every")[1] == [("every", [40])]
    assert run([[COPY] * 4 + [CLASSES] * 4], labels="causal")[0][0].contradicting == 4


@given(
    st.lists(
        st.lists(st.sampled_from([COPY, CLASSES, MASKED, UNSHIFTED]), max_size=12), min_size=1
    ),
    st.integers(1, 30),
)
def test_totals_are_those_of_one_reading(shards, buffer_size):
    _, rounds = run(shards, buffer_size=buffer_size)
    readings = [labels for labels, _ in rounds]
    assert len({*readings} - {None}) <= 1
    assert readings == sorted(readings, key=lambda labels: labels is not None)
