from __future__ import annotations

import json

import pytest

from evenstep.errors import InvariantError
from evenstep_demos.text.figures import measure, one_after_the_other
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
    figures = measure(_records(), 2.5)
    assert (figures.steps, figures.samples, figures.tokens, figures.padded_tokens) == (2, 8, 36, 48)
    assert figures.seconds == 10.0
    assert figures.tokens_per_second == pytest.approx(3.6)
    assert figures.padding == pytest.approx(0.25)
    assert figures.imbalance == pytest.approx((2.5 + 1.5) / (1.75 + 1.25))
    assert figures.imbalance_in_tokens == pytest.approx((16 + 18) / (12 + 12))
    assert figures.samples_per_step == 4.0
    assert figures.wait == pytest.approx((1 / 10 + 2 / 8) / 2)
    assert figures.first_wait == 2.0
    assert figures.processor_share == pytest.approx(6 / 8)
    assert figures.processor_seconds == pytest.approx(2.5 + 1.5)
    assert figures.most_padded_tokens == 18
    assert figures.rank_seconds == (4.0, 4.0)
    assert figures.compute_seconds.tolist() == [[2.5, 1.0], [1.0, 1.5]]


def test_repeats_one_after_the_other_add_up() -> None:
    once, twice = (measure(one_after_the_other([_records()] * n), 2.5) for n in (1, 2))
    assert once.as_dict() == measure(_records(), 2.5).as_dict()
    assert (twice.steps, twice.samples, twice.seconds) == (4, 16, 20.0)
    assert twice.rank_seconds == (8.0, 8.0)
    for name in ("tokens_per_second", "padding", "imbalance", "wait", "processor_share"):
        assert getattr(twice, name) == pytest.approx(getattr(once, name))


def test_figures_are_json() -> None:
    values = measure(_records(), 2.5).as_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_ranks_out_of_step_are_an_error() -> None:
    records = _records()
    records[1].compute.append(1.0)
    with pytest.raises(InvariantError, match=r"\[2, 3\] steps"):
        measure(records, 2.5)
