"""One step on a pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.wlb.pipeline_run import simulate_pipeline
from evenstep.plan.pipeline import PipelineSchedule


def test_equal_micro_batches_wait_while_the_pipeline_fills_and_drains() -> None:
    run = simulate_pipeline(np.full(6, 2.0), PipelineSchedule(stages=4))
    assert run.makespan == run.balanced_makespan == pytest.approx((6 + 3) * 2 * 3)
    assert run.bubble == pytest.approx(3 / 9)
    assert run.makespan_ratio == 1


def test_zero_cost_has_no_bubble() -> None:
    run = simulate_pipeline([0.0, 0.0], PipelineSchedule(stages=2))
    assert (run.makespan, run.bubble, run.makespan_ratio) == (0.0, 0.0, 1.0)
