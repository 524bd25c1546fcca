"""Figures of packed streams: what each is, and that packing by cost reaches what it should."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.step_plan import plan_step
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.packing_result import PackingResult, makespan_ratio, measure
from evenstep.tools.simulate.packing_run import (
    ArrivingDocuments,
    Trained,
    run_original,
    run_planner,
)

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


def test_equal_micro_batches_take_no_longer_than_equal_ones() -> None:
    schedule = PipelineSchedule(stages=2)
    assert makespan_ratio(np.full((3, 4), 7), schedule) == 1
    uneven = np.array([[9, 1, 1, 1], [1, 9, 1, 1]])
    ordered = makespan_ratio(uneven, schedule)
    assert 1 < ordered <= makespan_ratio(uneven, schedule, ordered=False)


def figures(whole: bool, options: PackingOptions, micro_batches: int) -> PackingResult:
    lengths = sample_lengths("pretrain-128k", 4800 * micro_batches, 0)
    arrivals = ArrivingDocuments.of(
        lengths, context=CONTEXT, micro_batches=micro_batches, whole=whole
    )
    trained = run_planner(partial(plan_step, options), arrivals, end="carry")
    return measure(arrivals, trained, options.cost)


def queues(count: int, micro_batches: int) -> PackingOptions:
    sample = sample_lengths("pretrain-128k", 20_000, 7)
    thresholds = auto_thresholds(sample, context=CONTEXT, queues=count)
    return PackingOptions(context=CONTEXT, micro_batches=micro_batches, thresholds=thresholds)


@pytest.mark.parametrize(("whole", "imbalance", "delay"), [(False, 1.03, 0.5), (True, 1.04, 0.6)])
def test_two_queues_make_four_micro_batches_even_at_half_a_step_of_delay(
    whole: bool, imbalance: float, delay: float
) -> None:
    result = figures(whole, queues(2, 4), 4)
    assert result.imbalance <= imbalance
    assert result.token_delay_mean <= delay
    assert result.token_delay_max <= 24
    assert result.max_tokens <= 163_840


@pytest.mark.parametrize("whole", [False, True])
def test_the_steady_planner_is_more_even_and_keeps_tokens_steady(whole: bool) -> None:
    result = figures(whole, SteadyOptions(context=CONTEXT, micro_batches=4), 4)
    assert result.imbalance <= 1.02
    assert result.tokens_per_step_cv <= 0.10
    assert result.token_delay_max <= 16
    assert result.max_tokens <= 163_840
