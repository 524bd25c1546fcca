"""Options of packing are refused where they are wrong, with the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.workload_packing import WorkloadPacking


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"context": 0}, "context=0"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"max_tokens": 109}, "max_tokens=109 must be at least 1.1 x context, 110"),
        ({"thresholds": (50, 50)}, "each length once"),
        ({"thresholds": (0,)}, "positive and ascending"),
        ({"max_delay": -1}, "max_delay=-1"),
        ({"context": 2**31}, "smaller coefficients"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        PackingOptions(**{"context": 100, "micro_batches": 4, **wrong})


def test_a_micro_batch_holds_a_quarter_more_than_the_context_by_default() -> None:
    assert PackingOptions(context=131_072, micro_batches=4).cap == 163_840
    assert PackingOptions(context=100, micro_batches=4, max_tokens=110).cap == 110
    # Where a quarter is less than a token, the cap is still 1.1 x context.
    assert PackingOptions(context=1, micro_batches=1).cap == 2


def test_the_steady_planner_takes_one_threshold_and_a_step_that_holds_a_micro_batch() -> None:
    with pytest.raises(ConfigurationError, match="no queues"):
        SteadyOptions(context=100, micro_batches=4, thresholds=(10, 20))
    with pytest.raises(ConfigurationError, match="step_tokens=100"):
        SteadyOptions(context=100, micro_batches=4, step_tokens=100)
    assert SteadyOptions(context=100, micro_batches=4).step_cap == 412
    assert SteadyOptions(context=100, micro_batches=1).step_cap == 125


@pytest.mark.parametrize(("thresholds", "options"), [((50,), PackingOptions), ((), SteadyOptions)])
def test_the_policy_waits_as_long_as_the_planners_say(
    thresholds: tuple[int, ...], options: type[PackingOptions]
) -> None:
    policy = WorkloadPacking(100, micro_batches=4, thresholds=thresholds)
    assert policy.planning.max_delay == options(context=100, micro_batches=4).max_delay
