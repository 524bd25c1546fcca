from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

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


@given(contested_windows() | st.tuples(windows_with_patches(), BUDGETS, st.integers(1, 100)))
@example((([5, 4, 3], [9, 0, 0]), 100, 8))  # above the limit, then samples without patches
def test_groups_with_patches_equal_those_formed_sample_by_sample(case: Case) -> None:
    (lengths, patches), max_tokens, max_patches = case
    groups = token_budget_groups(
        int64(lengths), max_tokens, patches=int64(patches), max_patches=max_patches
    )
    assert lists(groups) == grouped_sample_by_sample(lengths, max_tokens, patches, max_patches)


@given(st.lists(st.integers(1, 2**31 - 1), max_size=50))
@example([2**31 - 1, 1, 2**31 - 1, 2, 2])
def test_longest_first_is_a_stable_sort(lengths: list[int]) -> None:
    expected = sorted(range(len(lengths)), key=lambda p: (-lengths[p], p))
    assert longest_first(int64(lengths)).tolist() == expected
