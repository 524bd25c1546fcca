"""Samples that take longer than a full group: how many there are, and what helps."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from evenstep.cost import Cost, FittedCost, PaddedTokenCost
from evenstep.plan.policies.by_name import POLICIES
from evenstep.tools.advise import Advice, LengthSample, Prediction, advise, set_up

COST = FittedCost(per_group=0.0, per_token=1.0, per_pair=0.001)
"""A sample of 100 tokens takes 110, and one of 2,000 takes 6,000."""
USED = {name: POLICIES[name] for name in ("even", "even-packed", "fixed-batch")}
MARK = "take longer than a full group"


@cache
def advice_of(*, long: int = 20, cost: Cost = COST, packed: bool = False, **options: Any) -> Advice:
    lengths = np.array([100] * (2000 - long) + [2000] * long)
    np.random.default_rng(0).shuffle(lengths)
    sample = LengthSample(name="d", lengths=lengths, total=2000, longest=2000, how="")
    given = {"world_size": 2, "max_tokens": 2000, "update_tokens": 32_000, **options}
    return advise(sample, USED, setup=set_up(sample, **given), cost=cost, packed=packed)


def note_of(advice: Advice) -> str:
    (note,) = (note for note in advice.notes if MARK in note)
    return note


def told(prediction: Prediction) -> str:
    figures = {name: figure.value for name, figure in prediction.figures.items()}
    return f"imbalance {figures['imbalance']:.3f}, composition {figures['composition']:.2f}"


def test_their_number_length_and_share_of_time_are_told() -> None:
    # 20 x 6,000 of 20 x 6,000 + 1,980 x 110
    start = f"20 of the 2,000 samples, those longer than 100 tokens, {MARK}, and 36% of the time"
    advice = advice_of()
    note = note_of(advice)
    assert note.startswith(start)
    assert f"({told(advice.prediction('even'))}). What helps" in note
    assert note.endswith("context parallelism for those longer than memory allows.")
    assert note_of(advice_of(packed=True)).startswith(start)


def test_each_remedy_is_told_with_what_it_is_predicted_to_do() -> None:
    advice = advice_of()
    note = note_of(advice)
    larger = advice_of(max_tokens=4000)
    assert f"max_tokens=4,000, if memory allows ({told(larger.prediction('even'))})" in note
    most = 4 * advice.setup.update_tokens
    longer = advice_of(update_tokens=most)
    assert f"update_tokens={most:,} ({told(longer.prediction('even'))})" in note
    assert f"; packing ({told(advice.prediction('even-packed'))})" in note
    waits_less = "those updates and sync='update', under DDP or ZeRO-1 (imbalance 1.0"
    assert f"; {waits_less}" in note
    assert f"; packing, {waits_less}" in note


def test_packing_is_no_remedy_where_groups_are_packed() -> None:
    note = note_of(advice_of(packed=True))
    assert "; packing (" not in note
    assert "; those updates and" not in note


def test_a_larger_budget_is_no_remedy_where_it_is_twice_the_longest() -> None:
    assert "max_tokens=" not in note_of(advice_of(max_tokens=4000)).partition("What helps")[2]


def test_groups_that_aim_lower_are_what_samples_are_compared_with() -> None:
    advice = advice_of(max_tokens=8000, cost=PaddedTokenCost(), update_tokens=2000)
    assert advice.prediction("even").options["target_tokens"] < 2000
    assert "max_tokens=" not in note_of(advice).partition("What helps")[2]


@pytest.mark.parametrize("options", [{"cost": PaddedTokenCost()}, {"long": 0}])
def test_nothing_is_told_where_no_sample_takes_longer(options: dict[str, Any]) -> None:
    assert not any(MARK in note for note in advice_of(**options).notes)


def test_nothing_is_told_where_they_take_no_time_to_speak_of() -> None:
    # 2,004 of 2,004 + 1,999 x 100, and 6,000 of 6,000 + 1,999 x 110.
    slow = FittedCost(per_group=0.0, per_token=1.0, per_pair=1e-6)
    assert not any(MARK in note for note in advice_of(long=1, cost=slow).notes)
    assert " and 3% of the time" in note_of(advice_of(long=1))
