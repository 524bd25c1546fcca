"""What the advice says of composition and the learning rate, whatever policy stands for `Even`."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.cost import PaddedTokenCost
from evenstep.plan import FixedBatch, Sorted
from evenstep.tools.advise import Advice, LengthSample, advise
from evenstep.tools.advise.predict import Build
from evenstep.tools.simulate import sample_lengths

WARNING = "mix lengths less than random batches do"


def advice_of(recommended: Build) -> Advice:
    lengths = sample_lengths("ultrachat", 800, 1)
    return advise(
        LengthSample(
            name="d", lengths=lengths, total=len(lengths), longest=int(lengths.max()), how=""
        ),
        {"even": recommended, "fixed-batch": lambda s: FixedBatch(s.batch_size)},
        world_size=4,
        cost=PaddedTokenCost(),
        batch_size=4,
        buffer_size=64,
    )


def test_steps_of_like_lengths_are_warned_of_in_one_sentence() -> None:
    advice = advice_of(lambda s: Sorted(8, lengths=s.lengths))
    composition = advice.prediction("even").figures["composition"].value
    assert composition < 0.1
    (warning,) = (note for note in advice.notes if WARNING in note)
    assert f"(composition {composition:.2f}), which may cost quality" in warning
    assert f"composition {composition:.2f}, where 1 is random" in advice.recommendation.reason


def test_random_steps_are_not_warned_of() -> None:
    advice = advice_of(lambda s: FixedBatch(8))
    assert advice.prediction("even").figures["composition"].value == pytest.approx(1, abs=0.1)
    assert not any(WARNING in note for note in advice.notes)


def test_rules_for_the_learning_rate_are_told_with_what_they_come_from() -> None:
    hint = advice_of(lambda s: FixedBatch(8)).learning_rate
    assert (hint.linear, hint.square_root) == pytest.approx((2, np.sqrt(2)))
    assert "1 x batch_size=4 of fixed-batch (--batch-size), or 1 x a group of even" in hint.text
    assert "16 and 32 samples" in hint.text
    assert "gives 2.00 times that rate, and the square-root rule to 1.41 times" in hint.text
    assert "Nothing applies either" in hint.text
