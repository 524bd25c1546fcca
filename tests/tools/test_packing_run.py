"""Whole runs of all packers: every document once, and as even as they should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.packing_run import (
    Packed,
    Stream,
    cut_at_windows,
    run_evenstep,
    run_original,
)
from benchmarks.papers.wlb.table2 import CONTEXT, algorithm_1
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.simulate import sample_lengths

LENGTHS = st.lists(st.one_of(st.integers(1, 8), st.integers(1, 40)), min_size=24, max_size=120)


def test_documents_are_cut_at_windows() -> None:
    pieces, windows = cut_at_windows(np.array([3, 5]), 4)
    assert (pieces.tolist(), windows.tolist()) == ([3, 1, 4], [0, 0, 1])


def test_imbalance_is_the_mean_of_all_steps() -> None:
    stream = Stream.of(np.array([10, 10, 6, 4, 10]), context=10, micro_batches=2)
    packed = Packed(stream, np.arange(4), np.array([0, 1, 4, 3]))
    assert [each.tolist() for each in packed.documents] == [[10], [10], [], [4], [6], []]
    assert packed.imbalance(DocumentCost(linear=1, quadratic=0)) == pytest.approx((1 + 2 + 2) / 3)


@settings(max_examples=30)
@given(LENGTHS.filter(lambda lengths: sum(lengths) > 360))
def test_every_document_is_trained_on_once_within_the_limit(lengths: list[int]) -> None:
    stream = Stream.of(np.array(lengths), context=40, micro_batches=3)
    original, own = run_original(stream), run_evenstep(stream, DocumentCost(linear=10))
    assert original.piece.tolist() == list(range(stream.bounds[-1]))
    assert {int(each.sum()) for each in original.documents} == {40}
    assert len(set(own.piece.tolist())) == len(own.piece)
    assert max(int(each.sum()) for each in own.documents) <= 50


def test_evenstep_is_more_even_than_algorithm_1_and_that_than_original_packing() -> None:
    stream = Stream.of(sample_lengths("pretrain-128k", 12_000), context=CONTEXT, micro_batches=4)
    cost = DocumentCost()
    runs = (run_original(stream), algorithm_1(2, cost, 0)(stream), run_evenstep(stream, cost))
    original, letter, own = (run.imbalance(cost) for run in runs)
    assert original > 1.3
    assert 1.015 < letter < 1.2
    assert own < 1.015
