"""Groups of like cost dealt out over steps: every group once, strata meet, updates stay whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.groups.spread import like_costs, spread
from evenstep.plan.rng import RandomStream, generator


def dealt(
    steps: int, ranks: int, accumulate: int, *, classes: int = 1, step: int = 0
) -> np.ndarray:
    """[ranks, steps] number of the group in each place, where group 0 is the longest of a rank."""
    lengths = -np.arange(steps, dtype=np.float64)
    return np.stack(
        [
            spread(
                lengths,
                np.array_split(np.arange(steps), classes),
                rank=rank,
                ranks=ranks,
                accumulate=accumulate,
                step=step,
                draw=generator(1, RandomStream.EVEN_ORDER),
            )
            for rank in range(ranks)
        ]
    )


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.integers(1, 4))
def test_every_group_is_emitted_once(steps: int, ranks: int, accumulate: int, classes: int) -> None:
    order = dealt(steps, ranks, accumulate, classes=classes)
    assert (np.sort(order, axis=1) == np.arange(steps)).all()


def test_each_step_holds_a_group_of_each_stratum() -> None:
    strata = dealt(32, 8, 1) // 4  # [ranks, steps]
    assert (np.sort(strata, axis=0) == np.arange(8)[:, None]).all()


def test_each_update_holds_a_group_of_each_stratum() -> None:
    order = dealt(32, 2, 4).reshape(2, 8, 4)  # [ranks, updates, steps]
    strata = np.concatenate(list(order), axis=1) // 4
    assert (np.sort(strata, axis=1) == np.arange(8)).all()


def test_a_round_that_begins_amid_an_update_ends_that_one_first() -> None:
    order = dealt(34, 2, 4, step=6)[:, 2:]  # 2 steps are left of update 1
    strata = np.concatenate(list(order.reshape(2, 8, 4)), axis=1) * 8 // 34
    assert (np.ptp(strata, axis=1) >= 6).all()
    assert (np.sort(dealt(34, 2, 4, step=6), axis=1) == np.arange(34)).all()


def test_groups_stay_in_their_class() -> None:
    order = dealt(24, 4, 1, classes=3) // 8
    assert (order == order[0]).all()


def test_classes_are_of_like_cost() -> None:
    classes = like_costs(np.array([79.0, 100, 96, 98, 90, 80]), 0.05)
    assert [c.tolist() for c in classes] == [[1, 3, 2], [4], [5, 0]]
