"""What groups of ranks share: every rank's offer alike, in one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from evenstep.errors import ConfigurationError
from evenstep.plan import Window


def policy(ranks: int, **options: Any) -> evenstep.WorkloadPacking:
    return evenstep.WorkloadPacking(
        100, **{"micro_batches": 2, "context_parallel": "dynamic", "ranks": ranks, **options}
    )


@given(st.lists(st.lists(st.integers(1, 240), max_size=12), min_size=2, max_size=5))
def test_the_shared_step_is_what_all_ranks_plan_of_their_windows(windows: list[list[int]]) -> None:
    if not any(windows):
        return
    plan, ranks = policy(len(windows)), range(len(windows))
    proposals, offers = {}, np.zeros((len(windows), 12), np.int64)
    for rank, lengths in enumerate(windows):
        if lengths:
            window = Window(lengths=np.array(lengths), ages=np.zeros(len(lengths), np.int64))
            proposals[rank] = plan.propose(window)
            offers[rank, : len(proposals[rank].message)] = proposals[rank].message
    shared = plan.share(offers)
    for rank in ranks:
        own = shared.lengths[shared.reader == rank].tolist()
        assert own == windows[rank][: len(own)], "the oldest"
        assert bool(own) == bool(windows[rank]), "of every rank that has any"
        if windows[rank]:
            planned = plan.settle(proposals[rank], offers, rank)
            assert planned.groups.members.tolist() == list(range(len(own)))
    first = sum(lengths[0] for lengths in windows if lengths)
    assert shared.lengths.sum() <= max(len(windows) * 200, first)
    shared.plan.check(shared.lengths, 125)
    cost = plan.planning.cost.of_documents(shared.lengths).sum()
    assert shared.costs.sum() == pytest.approx(cost)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ranks": None}, "ranks"),
        ({"max_delay": 3}, "max_delay=3"),
        ({"context_parallel": "any"}, "'any' must be a number of ranks, or 'dynamic'"),
        ({"context_parallel": 2}, "ranks=4 is for context_parallel='dynamic'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        policy(**{"ranks": 4, **options})


def test_checkpoints_do_not_depend_on_the_number_of_ranks() -> None:
    assert policy(4).fingerprint == policy(6).fingerprint
    fixed = evenstep.WorkloadPacking(100, micro_batches=2)
    assert "ranks" not in fixed.fingerprint
    assert "exchange" not in fixed.fingerprint
    assert policy(4).fingerprint != fixed.fingerprint


def test_a_document_may_have_the_tokens_of_all_ranks_and_no_more() -> None:
    plan = policy(4)
    assert plan.max_length == 500
    error = plan.explain_too_long("sample 7", 501)
    assert "sample 7 has 501 tokens, over the 500 that 4 ranks of max_tokens=125 hold" in str(error)
