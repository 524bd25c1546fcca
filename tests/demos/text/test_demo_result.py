from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from evenstep_demos.text.budget import choose
from evenstep_demos.text.figures import TextRunFigures
from evenstep_demos.text.interval import PairedDifference
from evenstep_demos.text.options import DemoOptions
from evenstep_demos.text.result import DemoResult, Repeats

LENGTHS = np.array([10, 20, 30, 40] * 4)


def _figures(tokens_per_second: float, loss: float, share: float = 1.0) -> TextRunFigures:
    return TextRunFigures(
        steps=4,
        samples=16,
        tokens=400,
        padded_tokens=500,
        seconds=400 / tokens_per_second,
        tokens_per_second=tokens_per_second,
        padding=0.2,
        imbalance=1.25,
        imbalance_in_tokens=1.2,
        samples_per_step=4.0,
        wait=0.01,
        first_wait=0.1,
        processor_share=share,
        processor_seconds=300 / tokens_per_second,
        most_padded_tokens=80,
        held_out_loss=loss,
        rank_seconds=(4.0, 4.0),
        compute_seconds=np.ones((4, 2)),
    )


def _repeats(whole: TextRunFigures, spread: float) -> Repeats:
    losses = tuple(whole.held_out_loss + spread * away for away in (-1.0, 0.0, 1.0))
    return Repeats(whole=whole, first=whole, held_out_losses=losses)


def _result(fixed: TextRunFigures, even: TextRunFigures, spread: float = 0.01) -> DemoResult:
    options = DemoOptions(max_tokens=80, max_length=64, samples=16)
    return DemoResult(
        options=options,
        samples="documents",
        corpus={"name": "words"},
        lengths=LENGTHS,
        choice=choose(LENGTHS, options),
        seconds_per_token=1e-4,
        initial_loss=8.0,
        fixed=_repeats(fixed, 0.0),
        even=_repeats(even, spread),
        picture=Path("steps.png"),
        seconds=12.0,
    )


def test_the_table_shows_the_figures_of_both_runs() -> None:
    table = _result(_figures(1000.0, 5.0), _figures(1900.0, 5.25)).table()
    rows = {line.split("  ")[0]: line.split()[-3:] for line in table.splitlines() if "  " in line}
    assert rows["real tokens per second"] == ["1,900", "x", "1.90"]
    assert "5.000   5.250   +0.250 ± 0.006" in re.sub(" {3,}", "   ", table)
    assert "16 documents, 400 tokens, each once in each of 3 repeats, on 2 ranks" in table


@pytest.mark.parametrize(
    ("speed", "loss", "said", "unsaid"),
    [
        (
            1900.0,
            5.25,
            ["1.90 times", "to 5.250 with", "0.250 higher", "interval of the difference is +0.225"],
            ["no faster", "do not tell"],
        ),
        (1900.0, 4.75, ["0.250 lower", "more than chance"], ["do not tell"]),
        (1900.0, 5.01, ["0.010 higher", "-0.015 to +0.035", "do not tell"], ["more than"]),
        (900.0, 5.0, ["0.90 times as fast", "no faster"], []),
    ],
)
def test_the_verdict_says_what_was_measured_and_no_more(
    speed: float, loss: float, said: list[str], unsaid: list[str]
) -> None:
    verdict = " ".join(_result(_figures(1000.0, 5.0), _figures(speed, loss)).verdict().split())
    assert all(words in verdict for words in said)
    assert not any(words in verdict for words in unsaid)


def test_a_busy_machine_is_owned_up_to() -> None:
    quiet, busy = _figures(1900.0, 5.0), _figures(1900.0, 5.0, share=0.6)
    for fixed, even in ((busy, quiet), (quiet, busy)):
        verdict = " ".join(_result(fixed, even).verdict().split())
        assert "for only 60% of the time" in verdict
        assert "1.00 times by the processor time" in verdict
    assert "other programs" not in _result(quiet, quiet).verdict()


def test_the_object_is_json_and_has_every_figure() -> None:
    result = _result(_figures(1000.0, 5.0), _figures(1900.0, 5.25))
    values = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    for run in ("fixed", "evenstep"):
        assert set(values[run]) == {field.name for field in dataclasses.fields(TextRunFigures)}
    assert values["speedup"] == pytest.approx(1.9)


def test_the_interval_is_that_of_students_t() -> None:
    found = PairedDifference.of([0.1, 0.2, 0.6])
    assert found.mean == pytest.approx(0.3)
    assert found.standard_error == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1) / np.sqrt(3))
    assert found.high - found.mean == pytest.approx(4.303 * found.standard_error)
    assert found.within_chance
    assert not PairedDifference.of([0.1, 0.11, 0.12]).within_chance


def test_the_picture_has_the_headline_figures_as_titles() -> None:
    fixed, even = _result(_figures(1000.0, 5.0), _figures(1900.0, 5.25)).panels()
    assert fixed.title.startswith("fixed batches of ")
    assert even.title == "evenstep.Even: 1,900 real tokens/s, 20.0% padding, imbalance 1.25"
