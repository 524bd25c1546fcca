"""The last steps hold everything, are few, and are even where documents allow it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.plan.packing.fill import drain
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions

OPTIONS = PackingOptions(context=40, micro_batches=3, cost=DocumentCost(linear=10))
LENGTHS = st.lists(st.integers(1, 50), max_size=40).map(lambda v: np.array(v, np.int64))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 8))
def test_ranks_that_agreed_on_a_number_make_as_many_steps(lengths: np.ndarray, wanted: int) -> None:
    least = len(drain(lengths, OPTIONS))
    made = len(drain(lengths, OPTIONS, steps=wanted))
    assert made == min(max(wanted, least), len(lengths))


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([10] * 24, [[4, 4, 4], [4, 4, 4]]),
        ([50, 50, 50, *[10] * 15], [[1, 1, 1], [5, 5, 5]]),
    ],
)
def test_micro_batches_of_similar_cost_form_a_step(
    lengths: list[int], sizes: list[list[int]]
) -> None:
    made = drain(np.array(lengths), OPTIONS)
    assert [sorted(groups.sizes.tolist()) for groups in made] == sizes


def test_what_balancing_cannot_fit_into_the_fewest_steps_is_packed_by_best_fit() -> None:
    lengths = np.array([25, 25, 20, 20, 20, 15, 15, 10])
    (only,) = drain(lengths, OPTIONS)
    assert [int(lengths[only.group(g)].sum()) for g in range(3)] == [50, 50, 50]


def test_a_document_that_fits_in_no_micro_batch_is_refused() -> None:
    with pytest.raises(SampleError, match="51 tokens"):
        drain(np.array([51]), OPTIONS)
