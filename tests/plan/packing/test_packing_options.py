"""Options of packing are refused where they are wrong, with the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import PackingOptions
from evenstep.plan.packing.workload_packing import WorkloadPacking


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"context": 0}, "context=0"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"max_tokens": 109}, "max_tokens=109 must be at least 1.1 x context, 110"),
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


def test_the_policy_waits_as_long_as_its_options_say() -> None:
    assert WorkloadPacking(100, micro_batches=4).planning.max_delay == 256
    assert WorkloadPacking(100, micro_batches=4, max_delay=7).planning.max_delay == 7
