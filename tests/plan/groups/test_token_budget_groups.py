from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.token_budget_groups import longest_first, token_budget_groups

LENGTHS = st.lists(st.integers(1, 1500), max_size=80)
HEAVY_TAIL = st.lists(st.floats(0, 12).map(lambda x: int(2**x)), max_size=200)
WINDOWS = st.one_of(LENGTHS, HEAVY_TAIL)
BUDGETS = st.integers(1, 5000)


def int64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def lists(groups: Groups) -> list[list[int]]:
    return [groups.group(g).tolist() for g in range(len(groups))]


def grouped_sample_by_sample(
    lengths: list[int],
    max_tokens: int,
    patches: list[int] | None = None,
    max_patches: int | None = None,
) -> list[list[int]]:
    """ODB, section 2.2, one sample at a time."""
    groups: list[list[int]] = []
    current: list[int] = []
    threshold = 1
    for position in sorted(range(len(lengths)), key=lambda p: (-lengths[p], p)):
        if patches is not None and max_patches is not None and current:
            held = sum(patches[p] for p in current)
            if held + patches[position] > max_patches:
                groups.append(current)
                current = []
        current.append(position)
        if len(current) == threshold:
            groups.append(current)
            current = []
            threshold = max(max_tokens // lengths[position], 1)
    if current:
        groups.append(current)
    return groups


def test_worked_example_of_appendix_d() -> None:
    lengths = int64([100, 200, 500, 800])
    groups = token_budget_groups(lengths, 1000)
    assert [lengths[g].tolist() for g in lists(groups)] == [[800], [500], [200, 100]]
    assert groups.shapes(lengths).padded.tolist() == [800, 500, 400]


def test_the_threshold_carries_over_to_the_next_group() -> None:
    # After 800 and 500 come two samples of 200, though 1000 // 200 = 5 would fit: the threshold is
    # that of 500. Only the group after it is filled by the threshold of 200.
    lengths = int64([800, 500, *[200] * 7])
    groups = token_budget_groups(lengths, 1000)
    assert [lengths[g].tolist() for g in lists(groups)] == [[800], [500], [200] * 2, [200] * 5]


@given(WINDOWS, BUDGETS)
def test_groups_equal_those_formed_sample_by_sample(lengths: list[int], max_tokens: int) -> None:
    groups = token_budget_groups(int64(lengths), max_tokens)
    assert lists(groups) == grouped_sample_by_sample(lengths, max_tokens)


@st.composite
def windows_with_patches(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    lengths = draw(WINDOWS)
    size = len(lengths)
    return lengths, draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))


Case = tuple[tuple[list[int], list[int]], int, int]


@st.composite
def contested_windows(draw: st.DrawFn) -> Case:
    """Windows in which now the budget closes a group and now the limit on patches."""
    size = draw(st.integers(20, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    window = rng.integers(1, 60, size).tolist(), rng.integers(0, 4, size).tolist()
    return window, draw(st.integers(60, 400)), draw(st.integers(2, 12))


def test_a_group_may_hold_as_many_patches_as_the_limit_and_no_more() -> None:
    def groups(max_patches: int) -> list[list[int]]:
        patches = int64([1, 2, 2])
        return lists(
            token_budget_groups(int64([10, 9, 9]), 50, patches=patches, max_patches=max_patches)
        )

    assert groups(4) == [[0], [1, 2]]
    assert groups(3) == [[0], [1], [2]]


@given(contested_windows() | st.tuples(windows_with_patches(), BUDGETS, st.integers(1, 100)))
@example((([5, 4, 3], [9, 0, 0]), 100, 8))  # above the limit, then samples without patches
def test_groups_with_patches_equal_those_formed_sample_by_sample(case: Case) -> None:
    (lengths, patches), max_tokens, max_patches = case
    groups = token_budget_groups(
        int64(lengths), max_tokens, patches=int64(patches), max_patches=max_patches
    )
    assert lists(groups) == grouped_sample_by_sample(lengths, max_tokens, patches, max_patches)


@given(windows_with_patches(), BUDGETS, st.none() | st.integers(1, 100))
def test_groups_partition_the_window_and_hold_both_limits_but_for_single_samples(
    window: tuple[list[int], list[int]], max_tokens: int, max_patches: int | None
) -> None:
    lengths, patches = window
    groups = token_budget_groups(
        int64(lengths), max_tokens, patches=int64(patches), max_patches=max_patches
    )
    assert sorted(groups.members.tolist()) == list(range(len(lengths)))
    for group in lists(groups):
        assert group
        if len(group) > 1:
            assert len(group) * max(lengths[p] for p in group) <= max_tokens
            assert max_patches is None or sum(patches[p] for p in group) <= max_patches


@given(WINDOWS, BUDGETS)
def test_a_sample_as_long_as_the_budget_or_longer_is_alone(
    lengths: list[int], max_tokens: int
) -> None:
    for group in lists(token_budget_groups(int64(lengths), max_tokens)):
        if len(group) > 1:
            assert 2 * max(lengths[p] for p in group) <= max_tokens


@given(WINDOWS, BUDGETS)
def test_a_limit_on_patches_that_nothing_reaches_changes_nothing(
    lengths: list[int], max_tokens: int
) -> None:
    free = token_budget_groups(int64(lengths), max_tokens)
    limited = token_budget_groups(
        int64(lengths), max_tokens, patches=int64(lengths), max_patches=10**9
    )
    assert lists(free) == lists(limited)


def test_groups_of_like_samples_fill_the_budget() -> None:
    lengths = np.full(1000, 100, np.int64)
    groups = token_budget_groups(lengths, 1250)
    assert groups.sizes[1:-1].tolist() == [12] * 83  # all but the first, alone, and the rest
    assert groups.sizes[0] == 1


@given(st.lists(st.integers(1, 2**31 - 1), max_size=50))
@example([2**31 - 1, 1, 2**31 - 1, 2, 2])
def test_longest_first_is_a_stable_sort(lengths: list[int]) -> None:
    expected = sorted(range(len(lengths)), key=lambda p: (-lengths[p], p))
    assert longest_first(int64(lengths)).tolist() == expected


def test_an_empty_window_has_no_groups() -> None:
    groups = token_budget_groups(int64([]), 100)
    assert len(groups) == 0
    assert groups.offsets.tolist() == [0]


def test_a_limit_on_patches_refuses_samples_of_unknown_patches() -> None:
    with pytest.raises(ConfigurationError, match="max_patches=8 needs the patches"):
        token_budget_groups(int64([1, 2, 3]), 100, max_patches=8)


def test_the_window_is_left_as_it_was() -> None:
    lengths, patches = int64([3, 1, 2]), int64([1, 2, 3])
    token_budget_groups(lengths, 4, patches=patches, max_patches=3)
    assert lengths.tolist() == [3, 1, 2]
    assert patches.tolist() == [1, 2, 3]
