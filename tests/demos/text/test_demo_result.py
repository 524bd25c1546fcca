from __future__ import annotations

import pytest

from evenstep_demos.text.result import figures
from evenstep_demos.text.train import StepRecords


def _records() -> list[StepRecords]:
    return [
        StepRecords(
            samples=[2, 1],
            tokens=[10, 6],
            padded_tokens=[16, 6],
            compute=[3.0, 1.0],
            compute_cpu=[2.5, 1.0],
            wait=[0.5, 0.25, 0.25],
            total=10.0,
        ),
        StepRecords(
            samples=[2, 3],
            tokens=[8, 12],
            padded_tokens=[8, 18],
            compute=[1.0, 3.0],
            compute_cpu=[1.0, 1.5],
            wait=[2.0, 0.0, 0.0],
            total=8.0,
        ),
    ]


def test_figures_of_a_small_run_by_hand() -> None:
    expected = {
        "steps": 2,
        "samples": 8,
        "tokens": 36,
        "seconds": 10.0,
        "tokens_per_second": 3.6,
        "padding": 0.25,
        "imbalance": (2.5 + 1.5) / (1.75 + 1.25),
        "samples_per_step": 4.0,
        "wait": (1 / 10 + 2 / 8) / 2,
        "processor_share": 6 / 8,
        "processor_seconds": 2.5 + 1.5,
        "most_padded_tokens": 18,
        "held_out_loss": 2.5,
    }
    found = figures([_records()], [2.5])
    assert found.pop("compute_seconds") == [[2.5, 1.0], [1.0, 1.5]]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
