from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.groups.groups import Groups
from evenstep.plan.rng import generator

LISTS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), max_size=12)


def groups_of(lists: list[list[int]]) -> Groups:
    members = [member for group in lists for member in group]
    offsets = np.cumsum([0] + [len(group) for group in lists])
    return Groups(np.array(members, np.int64), offsets.astype(np.int64))


def lists_of(groups: Groups) -> list[list[int]]:
    return [groups.group(g).tolist() for g in range(len(groups))]


@given(LISTS)
def test_groups_are_the_slices_between_offsets(lists: list[list[int]]) -> None:
    groups = groups_of(lists)
    assert len(groups) == len(lists)
    assert groups.sizes.tolist() == [len(group) for group in lists]
    assert lists_of(groups) == lists


@given(LISTS)
def test_groups_of_lists_are_the_lists(lists: list[list[int]]) -> None:
    made = Groups.of([np.array(group, np.int64) for group in lists])
    expected = groups_of(lists)
    assert made.members.tolist() == expected.members.tolist()
    assert made.offsets.tolist() == expected.offsets.tolist()
    assert made.members.dtype == made.offsets.dtype == np.int64


@given(st.lists(st.integers(-1, 5), max_size=30), st.randoms(use_true_random=False))
def test_groups_by_label_hold_who_has_the_label_in_the_order_asked_for(
    labels: list[int], random: Random
) -> None:
    order = list(range(len(labels)))
    column = np.array(labels, np.int64)
    for asked in (None, order):
        made = Groups.by_label(column, None if asked is None else np.array(order, np.int64))
        assert lists_of(made) == [
            [place for place in order if labels[place] == used] for used in sorted({*labels} - {-1})
        ]
        assert made.members.dtype == made.offsets.dtype == np.int64
        random.shuffle(order)


@given(LISTS.filter(bool), st.data())
def test_take_equals_list_indexing(lists: list[list[int]], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=20))
    taken = groups_of(lists).take(np.array(order, np.int64))
    assert lists_of(taken) == [lists[i] for i in order]


@given(LISTS)
def test_shapes_are_measured_on_the_members(lists: list[list[int]]) -> None:
    lengths = np.arange(100, dtype=np.int64) * 7 + 1
    shapes = groups_of(lists).shapes(lengths)
    assert shapes.samples.tolist() == [len(group) for group in lists]
    assert shapes.tokens.tolist() == [sum(7 * m + 1 for m in group) for group in lists]
    assert shapes.longest.tolist() == [max(7 * m + 1 for m in group) for group in lists]


def test_empty_groups_have_no_group_and_no_member() -> None:
    empty = Groups.empty()
    assert len(empty) == len(empty.members) == len(empty.sizes) == 0
    assert len(empty.take(np.empty(0, np.int64))) == 0
    assert len(empty.shapes(np.empty(0, np.int64))) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (3, 2, 1)), ((0, 1), (1, 1)), ((-1, 1), (1, 1))],
)
def test_other_keys_give_other_numbers(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert generator(*one).permutation(50).tolist() != generator(*other).permutation(50).tolist()


def test_the_bits_behind_a_key_never_change() -> None:
    # Ranks run on different machines; NumPy promises these bits for every version.
    bits = generator(7, 2**40, -1).bit_generator.random_raw(2).tolist()
    assert bits == [510462867260471198, 4789769423851728485]
