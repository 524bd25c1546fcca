"""Whole runs of all packers: every document once, at either end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_exact,
    run_fixed_length,
    run_original,
)
from evenstep.plan.packing.step_limits import DocumentCost

CONTEXT, MICRO_BATCHES = 40, 3
WORK = DocumentCost(linear=10)
LENGTHS = st.lists(
    st.one_of(st.integers(1, 8), st.integers(1, CONTEXT)), min_size=1, max_size=120
).map(lambda v: np.array(v, np.int64))
ENDS = st.sampled_from(["drain", "carry"])


def arrive(lengths: np.ndarray, whole: bool) -> ArrivingDocuments:
    return ArrivingDocuments.of(lengths, context=CONTEXT, micro_batches=MICRO_BATCHES, whole=whole)


def check_covered(
    arrivals: ArrivingDocuments, trained: Trained, cap: int, expected: set[int]
) -> None:
    """Every token of the expected pieces once, no micro-batch beyond the cap, none before it came
    but where several global batches are packed together."""
    held = np.zeros(len(arrivals.pieces), np.int64)
    np.add.at(held, trained.piece, trained.length)
    assert set(np.flatnonzero(held).tolist()) == expected
    assert (held[held > 0] == arrivals.pieces.lengths[held > 0]).all()
    key = trained.step * MICRO_BATCHES + trained.micro_batch
    assert np.bincount(key, weights=trained.length).max(initial=0) <= cap
    assert (trained.micro_batch < MICRO_BATCHES).all()


@settings(max_examples=30)
@given(LENGTHS, st.booleans(), ENDS)
def test_evenstep_trains_on_every_document_once_or_leaves_it(
    lengths: np.ndarray, whole: bool, end: str
) -> None:
    arrivals = arrive(lengths, whole)
    trained = run_evenstep(arrivals, cost=WORK, end=end)
    planned = set(range(len(arrivals.pieces))) if end == "drain" else set(trained.piece.tolist())
    check_covered(arrivals, trained, 50, planned)
    # No step is left out.
    assert set(trained.step.tolist()) == set(range(trained.step.max(initial=-1) + 1))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 4), ENDS)
def test_packers_of_global_batches_train_on_every_token_once(
    lengths: np.ndarray, batches: int, end: str
) -> None:
    arrivals = arrive(lengths, False)
    complete = set(range(int(arrivals.bounds[-2])))
    expected = set(range(len(arrivals.pieces))) if end == "drain" else complete
    for trained in (
        run_original(arrivals, end=end),
        run_fixed_length(arrivals, batches, cost=WORK, end=end),
    ):
        check_covered(arrivals, trained, CONTEXT, expected)
        # Nothing leaves the global batches that it was packed with.
        assert (trained.step // batches == arrivals.batch[trained.piece] // batches).all()


@pytest.mark.parametrize("max_tokens", [CONTEXT, 50])
def test_the_solver_trains_on_every_document_once_and_is_not_worse_than_the_original(
    max_tokens: int,
) -> None:
    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, CONTEXT, 40)
    arrivals = arrive(lengths, False)
    trained = run_exact(arrivals, 2, cost=WORK, max_tokens=max_tokens, time_limit=0.2, end="carry")
    check_covered(arrivals, trained, max_tokens, set(range(int(arrivals.bounds[-2]))))
    assert sum(trained.statuses.values()) == -(-arrivals.complete // 2)

    def largest(run: Trained) -> float:
        load = np.zeros((arrivals.complete, MICRO_BATCHES))
        np.add.at(load, (run.step, run.micro_batch), WORK.of_documents(run.length))
        return float(load.max(axis=1).sum())

    assert largest(trained) <= largest(run_original(arrivals, end="carry"))
