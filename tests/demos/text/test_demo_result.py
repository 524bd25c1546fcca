from __future__ import annotations

from typing import Any

import pytest

from evenstep.errors import InvariantError
from evenstep_demos.text.result import figures, figures_of_both, verdict
from evenstep_demos.text.train import BothTrained, StepRecords


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


def test_ranks_out_of_step_are_an_error() -> None:
    records = _records()
    records[1].compute.append(1.0)
    with pytest.raises(InvariantError, match=r"\[2, 3\] steps"):
        figures([records], [2.5])


def _trained(speed: float, loss: float, share: float = 1.0) -> BothTrained:
    """Fixed batches of 1,000 tokens a second and a loss of 5.0, against `speed` and `loss`."""

    def records(rate: float, processor: float) -> list[list[StepRecords]]:
        rank = StepRecords(
            samples=[2, 2],
            tokens=[40, 60],
            padded_tokens=[50, 75],
            compute=[1.0, 1.0],
            compute_cpu=[100 / rate * processor] * 2,
            wait=[0.0, 0.0, 0.0],
            total=200 / rate,
        )
        rank.compute = [each / processor for each in rank.compute_cpu]
        return [[rank, rank]] * 3

    return BothTrained(
        initial_loss=8.0,
        records={"fixed": records(1000.0, 1.0), "evenstep": records(speed, share)},
        held_out_losses={"fixed": [5.0] * 3, "evenstep": [loss - 0.01, loss, loss + 0.01]},
    )


def _result(*made: float) -> dict[str, Any]:
    options = {"samples": 8, "batch_size": 2, "fitted_max_tokens": 80, "world_size": 2}
    return {**figures_of_both(_trained(*made)), "samples": "documents", "options": options}


@pytest.mark.parametrize(
    ("made", "said", "unsaid"),
    [
        (
            (1900.0, 5.25),
            ["1.90 times", "is +0.225 to +0.275, which does not contain 0"],
            ["no faster", "other programs"],
        ),
        ((1900.0, 5.001), ["which contains 0"], []),
        ((900.0, 5.0), ["0.90 times as fast", "no faster"], []),
        ((1900.0, 5.0, 0.6), ["for only 60% of the time"], []),
    ],
)
def test_the_verdict_says_what_was_measured_and_no_more(
    made: tuple[float, ...], said: list[str], unsaid: list[str]
) -> None:
    words = " ".join(verdict(_result(*made)).split())
    assert all(each in words for each in said)
    assert not any(each in words for each in unsaid)


def test_the_interval_is_that_of_students_t() -> None:
    found = _result(1900.0, 5.3)["loss_difference"]
    assert found["mean"] == pytest.approx(0.3)
    assert found["standard_error"] == pytest.approx(0.01 / 3**0.5)
    assert found["high"] - found["mean"] == pytest.approx(4.303 * found["standard_error"])
