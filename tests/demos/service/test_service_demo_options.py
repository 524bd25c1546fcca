from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenstep.errors import ConfigurationError
from evenstep_demos.service.options import ServiceDemoOptions


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples_per_step": 10}, "samples_per_step=10 must be a multiple of 4"),
        ({"samples_per_step": 0}, "samples_per_step=0"),
        ({"data": [Path("nowhere.parquet")]}, "nowhere.parquet does not exist"),
        ({"vision": True, "live": True}, "leave out --live and --data"),
    ],
)
def test_wrong_options_are_refused_before_any_work(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ServiceDemoOptions(**given)


def test_a_row_holds_a_micro_batch_of_the_longest_samples() -> None:
    options = ServiceDemoOptions(samples_per_step=32, max_length=100)
    assert options.max_tokens == 8 * 100
