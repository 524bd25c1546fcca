"""Options of packing are refused where they are wrong, with the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import PackingOptions


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
