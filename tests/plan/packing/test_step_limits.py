"""What limits a step: the cost of documents in whole numbers, and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import Cost, FittedCost, GroupShapes, PaddedTokenCost, TokenCost, TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions

LENGTHS = st.lists(st.integers(1, 300_000), min_size=1, max_size=20)
DOCUMENT_COSTS = st.builds(
    DocumentCost, linear=st.integers(0, 10**6), quadratic=st.integers(1, 1000)
)


@given(LENGTHS, DOCUMENT_COSTS)
def test_as_a_cost_a_packed_group_is_the_sum_of_its_documents(
    lengths: list[int], document_cost: DocumentCost
) -> None:
    shapes = GroupShapes.measure(lengths, [0, len(lengths)])
    expected = document_cost.of_documents(np.array(lengths)).sum()
    assert document_cost(shapes, packed=True)[0] == float(expected)


@pytest.mark.parametrize(
    "cost",
    [
        TransformerCost(layers=2, hidden_size=64, heads=8, ffn_size=128),
        TransformerCost(layers=2, hidden_size=16384, heads=8, ffn_size=14_336, vocab_size=128_000),
        FittedCost(per_group=0.7, per_token=1e-9, per_pair=1e-3),
        FittedCost(per_group=0.0, per_token=1e-3, per_pair=1e-14),
        TokenCost(),
        PaddedTokenCost(),
    ],
)
@given(LENGTHS)
def test_costs_are_in_proportion_to_the_cost_they_were_taken_from(
    cost: Cost, lengths: list[int]
) -> None:
    fixed = cost.per_group if isinstance(cost, FittedCost) else 0.0
    alone = GroupShapes.measure(lengths, np.arange(len(lengths) + 1))
    expected = cost(alone, packed=True) - fixed
    got = DocumentCost.of(cost).of_documents(np.array(lengths)) * 1.0
    scale = expected.sum() / got.sum()
    assert got * scale == pytest.approx(expected, rel=2e-3, abs=1e-12)


def test_a_cost_that_is_not_a_sum_over_documents_is_refused() -> None:
    def opaque(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
        return shapes.longest * 1.0

    with pytest.raises(ConfigurationError, match="per_token and per_pair"):
        DocumentCost.of(opaque)


def test_cost_beyond_the_range_of_an_int64_is_refused() -> None:
    DocumentCost().check_range(2**30)
    with pytest.raises(ConfigurationError, match="same ratio"):
        DocumentCost().check_range(2**31)


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
