"""What is shown: tables, the picture of steps by the colours of its pixels, the text of advice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evenstep.cost import PaddedTokenCost
from evenstep.plan import Even, FixedBatch, Policy
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.advise import Advice, LengthSample, advise, set_up
from evenstep.tools.advise.predict import LEFT_OUT
from evenstep.tools.report import StepPanel, plot_steps, text_table
from evenstep.tools.report.advice_text import advice_text


def test_numbers_are_flush_right_and_names_flush_left() -> None:
    table = text_table(["", "fixed"], [["padding", "40 %"], ["wait", "1 %"]], title="Two runs")
    assert table.split("\n") == [
        "Two runs",
        "",
        "          fixed",
        "───────   ─────",
        "padding    40 %",
        "wait        1 %",
    ]


# Pictures

IDLE = (0x80, 0x80, 0x80, 0x60)
RANKS = ((0x00, 0x72, 0xB2, 0xFF), (0xE6, 0x9F, 0x00, 0xFF))


def pixels(path: Path) -> np.ndarray:
    imread = pytest.importorskip("matplotlib.image").imread
    return np.round(imread(path) * 255).astype(int)


def coloured(image: np.ndarray, colour: tuple[int, ...]) -> int:
    return int((np.abs(image - colour).max(axis=2) <= 2).sum())


def steps(path: Path, seconds: list[list[float]]) -> np.ndarray:
    plot_steps([StepPanel(title="one", seconds=np.array(seconds))], path, title="Steps")
    return pixels(path)


def test_time_waited_is_grey_and_each_rank_has_its_colour(tmp_path: Path) -> None:
    ragged = steps(tmp_path / "new" / "ragged.png", [[1.0, 0.25], [0.25, 1.0]] * 4)
    even = steps(tmp_path / "even.png", [[1.0, 1.0]] * 8)
    for colour in RANKS:
        assert coloured(even, colour) > coloured(ragged, colour) > 1000
    # What is left of the grey in the even picture is its patch in the legend.
    assert coloured(ragged, IDLE) > 10 * coloured(even, IDLE)


# Advice

NAME = "chat<&>.parquet:tokens"


def _broken(options: PolicyOptions) -> Policy:
    raise ImportError("needs <numba>")


@cache
def made(*, whole: bool = False) -> Advice:
    """Advice of three policies, of which one cannot run; from drawn samples, or from all."""
    lengths = np.random.default_rng(1).lognormal(5, 1, 160).astype(np.int64) + 1
    length_sample = LengthSample(
        name=NAME,
        lengths=lengths,
        total=len(lengths) if whole else 600,
        longest=int(lengths.max()) if whole else None,
        how="drawn at random",
    )
    return advise(
        length_sample,
        {
            "even": lambda s: Even(s.max_tokens, cost=s.cost),
            "fixed-batch": lambda s: FixedBatch(s.batch_size, cost=s.cost),
            "broken": _broken,
        },
        setup=set_up(length_sample, world_size=2),
        cost=PaddedTokenCost(),
    )


def lines_of(text: str) -> str:
    """Wrapped lines as one, to look for sentences."""
    return " ".join(text.split())


def test_all_parts_of_the_advice_are_shown() -> None:
    advice = made()
    text = lines_of(advice_text(advice))
    assert NAME in text
    assert "160 of 600 samples, drawn at random." in text
    for clause in (*LEFT_OUT, *advice.notes, *advice.setup.reasons):
        assert clause in text
    assert "broken: needs <numba>" in text
    assert "buffer_size auto, cost" in text
    assert f"{advice.summary.cv:.2f}" in text
    assert f"{advice.prediction('even').figures['efficiency']:.1%}" in text
    assert lines_of(advice.recommendation.code) in text
