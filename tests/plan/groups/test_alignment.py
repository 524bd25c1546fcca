from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.groups.alignment import align, alignment_target, rounds_overdue
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.token_budget_groups import token_budget_groups

RANKS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 80), st.integers(0, 60)), min_size=1, max_size=16
)


def int64(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def target_of(ranks: list[tuple[int, int, int]]) -> int:
    groups, samples, capacities = (int64(list(column)) for column in zip(*ranks))
    return alignment_target(groups, samples, capacities)


# Eq. 3


@given(RANKS)
def test_target_equals_eq_3(ranks: list[tuple[int, int, int]]) -> None:
    active = [rank for rank in ranks if rank[0] > 0]
    if not active:
        assert target_of(ranks) == 0
        return
    most = max(groups for groups, _, _ in active)
    samples = min((s for _, s, _ in active if s > 0), default=most)
    capacity = min((c for _, _, c in active if c > 0), default=most)
    assert target_of(ranks) == max(min(most, capacity, samples), 1)


# Algorithm 1


def aligned_as_in_the_paper(groups: list[list[int]], target: int) -> tuple[list[list[int]], list]:
    """Algorithm 1 on groups of lengths, written as the paper has it: shortest group first, and
    each group's longest sample last. Between groups of equal size the longer one is kept."""
    kept = [sorted(group) for group in reversed(groups)]
    while len(kept) < target and any(len(group) > 1 for group in kept):
        largest = next(group for group in reversed(kept) if len(group) > 1)
        kept.append([largest.pop()])
    if len(kept) <= target:
        return kept, []
    kept.reverse()
    by_size = sorted(kept, key=len, reverse=True)
    return by_size[:target], [length for group in by_size[target:] for length in group]


@st.composite
def alignments(draw: st.DrawFn) -> tuple[np.ndarray, Groups, int]:
    lengths = int64(draw(st.lists(st.integers(1, 900), min_size=1, max_size=60)))
    groups = token_budget_groups(lengths, draw(st.integers(1, 4000)))
    return lengths, groups, draw(st.integers(1, len(lengths)))


def length_lists(groups: Groups, lengths: np.ndarray) -> list[list[int]]:
    return [lengths[groups.group(g)].tolist() for g in range(len(groups))]


def multiset(groups: list[list[int]]) -> list[list[int]]:
    return sorted(sorted(group) for group in groups)


@given(alignments())
def test_groups_and_returned_samples_equal_algorithm_1(
    case: tuple[np.ndarray, Groups, int],
) -> None:
    lengths, groups, target = case
    aligned, returned = align(groups, target)
    kept, overflow = aligned_as_in_the_paper(length_lists(groups, lengths), target)
    assert multiset(length_lists(aligned, lengths)) == multiset(kept)
    assert sorted(lengths[returned].tolist()) == sorted(overflow)


@st.composite
def overdue_alignments(draw: st.DrawFn) -> tuple[np.ndarray, Groups, int, list[int] | None]:
    lengths, groups, target = draw(alignments())
    size = len(groups)
    overdue = draw(st.none() | st.lists(st.integers(0, 4), min_size=size, max_size=size))
    return lengths, groups, target, overdue


@given(overdue_alignments())
def test_a_rank_gets_exactly_the_target_and_loses_nothing(
    case: tuple[np.ndarray, Groups, int, list[int] | None],
) -> None:
    lengths, groups, target, overdue = case
    aligned, returned = align(groups, target, None if overdue is None else int64(overdue))
    assert len(aligned) == target
    assert (aligned.sizes > 0).all()
    everything = np.concatenate([aligned.members, returned])
    assert sorted(everything.tolist()) == list(range(len(lengths)))
    assert (np.diff(aligned.shapes(lengths).longest) <= 0).all()


@given(overdue_alignments())
def test_no_group_grows_in_samples_or_in_padded_tokens(
    case: tuple[np.ndarray, Groups, int, list[int] | None],
) -> None:
    lengths, groups, target, overdue = case
    aligned, _ = align(groups, target, None if overdue is None else int64(overdue))
    home = {int(p): g for g in range(len(groups)) for p in groups.group(g)}
    before, after = groups.shapes(lengths), aligned.shapes(lengths)
    for g in range(len(aligned)):
        (origin,) = {home[int(p)] for p in aligned.group(g)}  # one group, never parts of two
        assert after.samples[g] <= before.samples[origin]
        assert after.padded[g] <= before.padded[origin]


@given(overdue_alignments())
def test_overdue_groups_are_kept_before_all_others_most_overdue_first(
    case: tuple[np.ndarray, Groups, int, list[int] | None],
) -> None:
    _, groups, target, overdue = case
    if overdue is None or len(groups) <= target:
        return
    aligned, _ = align(groups, target, int64(overdue))
    kept_first = {int(aligned.group(g)[0]) for g in range(len(aligned))}
    ranked = [(late, int(size)) for late, size in zip(overdue, groups.sizes)]
    kept = [
        r for r, start in zip(ranked, groups.offsets) if int(groups.members[start]) in kept_first
    ]
    assert sorted(kept, reverse=True) == sorted(ranked, reverse=True)[:target]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=8),
    st.integers(0, 9),
)
def test_a_group_is_overdue_from_the_round_in_which_its_oldest_sample_has_waited_enough(
    ages: list[list[int]], max_wait: int
) -> None:
    flat = int64([age for group in ages for age in group])
    groups = Groups(np.arange(len(flat)), np.cumsum([0, *map(len, ages)]))
    overdue = rounds_overdue(groups, flat, max_wait).tolist()
    assert overdue == [max(max(group) + 1 - max_wait, 0) for group in ages]
