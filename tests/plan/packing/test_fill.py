"""One rank fills its micro-batches to the agreed cost, oldest documents first; by value."""

from __future__ import annotations

import numpy as np

from evenstep.plan.packing.fill import fill
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions

TOKENS = DocumentCost(linear=1, quadratic=0)
OPTIONS = PackingOptions(context=10, micro_batches=2, max_tokens=12, max_delay=5, cost=TOKENS)


def filled(
    lengths: list[int], cost: int, *, ages: list[int] | None = None, released: tuple[int, ...] = ()
) -> list[list[int]]:
    """Tokens of the documents of each micro-batch; without attention, a token costs 1."""
    groups = fill(
        np.array(lengths),
        np.array(ages or [0] * len(lengths)),
        OPTIONS,
        released=np.array(released, np.int64),
        level=10,
        cost=cost,
    )
    return [[lengths[i] for i in groups.group(g)] for g in range(len(groups))]


def test_the_oldest_documents_are_placed_from_the_dearest_to_the_cheapest() -> None:
    assert filled([4, 6, 5, 5, 3, 3], 10) == [[4, 6], [5, 5]]
    assert filled([3, 4, 6, 7, 9], 10) == [[3, 7], [4, 6]]


def test_what_would_be_too_dear_waits_and_others_fill_the_gap() -> None:
    # Two of six tokens fit in one micro-batch each; the third would make one of twelve.
    assert filled([6, 6, 6, 4, 3], 10) == [[6, 4], [6, 3]]


def test_an_outlier_is_in_every_micro_batch_and_dearer_ones_get_less_beside_them() -> None:
    assert filled([1, 1, 1, 12, 11], 12, released=(3, 4)) == [[12], [1, 11]]


def test_documents_that_must_not_wait_come_first_whatever_they_cost() -> None:
    assert filled([9, 9, 9, 3], 9, ages=[0, 0, 0, 5]) == [[3], [9]]
