from __future__ import annotations

from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep_demos.text.options import DemoOptions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"world_size": 1}, "world_size=1 must be at least 2"),
        ({"max_tokens": 10}, "max_tokens=10"),
        ({"max_length": 0}, "max_length=0"),
        ({"seed": -1}, "seed=-1"),
        ({"samples": 3, "world_size": 4}, "samples=3"),
        ({"vocab_size": 256}, "vocab_size=256"),
        ({"repeats": 1}, "repeats=1 must be at least 2"),
        ({"seconds": 0.0}, r"seconds=0\.0"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"max_tokens": 1000, "max_length": 1001}, "max_length=1,001 is over max_tokens=1,000"),
    ],
)
def test_a_wrong_value_is_named_before_any_work(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DemoOptions(**wrong)


def test_a_document_of_the_default_limit_fits_the_budget() -> None:
    for budget in (64, 1000, 1536):
        options = DemoOptions(max_tokens=budget)
        assert 0 < options.length_limit <= budget
