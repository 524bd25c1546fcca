"""Figures of packed streams: what each is, and that packing by cost reaches what it should."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.packing_result import makespan_ratio, measure
from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_original,
)
from benchmarks.papers.wlb.pipeline_run import simulate_pipeline
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.tools.simulate import sample_lengths

CONTEXT = 131_072


def test_figures_are_what_they_are_called() -> None:
    lengths = np.array([10, 10, 6, 4, 10])
    arrivals = ArrivingDocuments.of(lengths, context=10, micro_batches=2)
    trained = Trained(
        piece=np.array([0, 1, 2, 3]),
        length=np.array([10, 10, 6, 4]),
        step=np.array([0, 0, 2, 1]),
        micro_batch=np.array([0, 1, 0, 1]),
        seconds=0.3,
    )
    result = measure(arrivals, trained, DocumentCost(linear=1, quadratic=0))
    assert result.costs.tolist() == [[10, 10], [0, 4], [6, 0]]
    assert result.imbalance == pytest.approx((1 + 2 + 2) / 3)
    assert result.imbalance_time_weighted == pytest.approx((10 + 4 + 6) / (10 + 2 + 3))
    # The third piece came with the second global batch and was trained on with the third.
    assert result.token_delay_mean == pytest.approx(6 / 30)
    assert result.token_delay_max == 1
    assert result.tokens_per_step == 10
    assert result.tokens_per_step_cv == pytest.approx(np.std([20, 4, 6]) / 10)
    assert result.plan_ms == pytest.approx(100)
    figures = (result.documents_in, result.documents_out, result.documents_waiting)
    assert figures == (5, 4, 1)
    assert "costs" not in result.as_dict()


def test_less_than_a_global_batch_has_no_figures() -> None:
    arrivals = ArrivingDocuments.of(np.array([3]), context=10, micro_batches=2)
    with pytest.raises(ConfigurationError, match="less than one global batch"):
        measure(arrivals, run_original(arrivals, end="carry"), DocumentCost())


def test_equal_micro_batches_wait_while_the_pipeline_fills_and_drains() -> None:
    run = simulate_pipeline(np.full(6, 2.0), PipelineSchedule(stages=4))
    assert run.makespan == run.balanced_makespan == pytest.approx((6 + 3) * 2 * 3)
    assert run.bubble == pytest.approx(3 / 9)
    assert run.makespan_ratio == 1


def test_equal_micro_batches_take_no_longer_than_equal_ones() -> None:
    schedule = PipelineSchedule(stages=2)
    assert makespan_ratio(np.full((3, 4), 7), schedule) == 1
    uneven = np.array([[9, 1, 1, 1], [1, 9, 1, 1]])
    ordered = makespan_ratio(uneven, schedule)
    assert 1 < ordered <= makespan_ratio(uneven, schedule, ordered=False)


def test_evenstep_is_more_even_than_algorithm_1_and_that_than_original_packing() -> None:
    lengths = sample_lengths("pretrain-128k", 12_000, 0)
    thresholds = auto_thresholds(lengths, context=CONTEXT, queues=2)
    cut, whole_ones = (
        ArrivingDocuments.of(lengths, context=CONTEXT, micro_batches=4, whole=each)
        for each in (False, True)
    )
    runs = [
        (cut, run_original(cut, end="carry")),
        (whole_ones, run_algorithm_1(whole_ones, thresholds=thresholds, cost=DocumentCost())),
        (whole_ones, run_evenstep(whole_ones, cost=DocumentCost(), end="carry")),
    ]
    original, letter, own = (measure(*run, DocumentCost()).imbalance for run in runs)
    assert original > 1.3
    assert 1.015 < letter < 1.2
    assert own < 1.015
