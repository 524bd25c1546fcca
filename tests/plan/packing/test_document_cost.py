"""Cost of documents: whole numbers, a sum over documents, whatever cost it is taken from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import Cost, FittedCost, GroupShapes, PaddedTokenCost, TokenCost, TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost

LENGTHS = st.lists(st.integers(1, 300_000), min_size=1, max_size=20)
DOCUMENT_COSTS = st.builds(
    DocumentCost, linear=st.integers(0, 10**6), quadratic=st.integers(1, 1000)
)


def column(lengths: list[int]) -> np.ndarray:
    return np.array(lengths, np.int64)


@settings(max_examples=50)
@given(LENGTHS, DOCUMENT_COSTS)
def test_as_a_cost_a_packed_group_is_the_sum_of_its_documents(
    lengths: list[int], document_cost: DocumentCost
) -> None:
    shapes = GroupShapes.measure(lengths, [0, len(lengths)])
    assert document_cost(shapes, packed=True)[0] == float(
        document_cost.of_documents(column(lengths)).sum()
    )


@settings(max_examples=50)
@given(
    LENGTHS,
    st.one_of(
        st.builds(
            TransformerCost,
            layers=st.just(2),
            hidden_size=st.sampled_from([64, 4096, 16384]),
            heads=st.just(8),
            ffn_size=st.sampled_from([128, 14_336]),
            vocab_size=st.sampled_from([0, 128_000]),
        ),
        st.builds(
            FittedCost,
            per_group=st.floats(0, 1),
            per_token=st.floats(1e-9, 1e-3),
            per_pair=st.floats(1e-14, 1e-3),
        ),
        st.just(TokenCost()),
        st.just(PaddedTokenCost()),
    ),
)
def test_costs_are_in_proportion_to_the_cost_they_were_taken_from(
    lengths: list[int], cost: Cost
) -> None:
    fixed = cost.per_group if isinstance(cost, FittedCost) else 0.0
    alone = GroupShapes.measure(lengths, np.arange(len(lengths) + 1))
    expected = cost(alone, packed=True) - fixed
    got = DocumentCost.of(cost).of_documents(column(lengths)) * 1.0
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
