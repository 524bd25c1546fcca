"""Groups under a token budget, aligned across ranks and dealt out over steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenstep.plan.groups import (
    Groups,
    align,
    alignment_target,
    spread,
    token_budget_groups,
)
from evenstep.plan.rng import RandomStream, generator

LENGTHS = st.lists(st.integers(1, 1500), max_size=80)
HEAVY_TAIL = st.lists(st.floats(0, 12).map(lambda x: int(2**x)), max_size=200)
WINDOWS = st.one_of(LENGTHS, HEAVY_TAIL)


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


Case = tuple[list[int], list[int], int, int]


@st.composite
def windows(draw: st.DrawFn) -> Case:
    """Lengths, patches and limits of both. Of the contested ones, now the budget closes a group and
    now the limit on patches."""
    if draw(st.booleans()):
        rng, size = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.integers(20, 60))
        window = rng.integers(1, 60, size).tolist(), rng.integers(0, 4, size).tolist()
        return (*window, draw(st.integers(60, 400)), draw(st.integers(2, 12)))
    lengths = draw(WINDOWS)
    size = len(lengths)
    patches = draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
    return lengths, patches, draw(st.integers(1, 5000)), draw(st.integers(1, 100))


@given(windows())
@example(([5, 4, 3], [9, 0, 0], 100, 8))  # above the limit, then samples without patches
def test_groups_with_patches_equal_those_formed_sample_by_sample(case: Case) -> None:
    lengths, patches, max_tokens, max_patches = case
    groups = token_budget_groups(
        int64(lengths), max_tokens, patches=int64(patches), max_patches=max_patches
    )
    assert lists(groups) == grouped_sample_by_sample(lengths, max_tokens, patches, max_patches)
    without = token_budget_groups(int64(lengths), max_tokens)
    assert lists(without) == grouped_sample_by_sample(lengths, max_tokens)


# Alignment


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 80)), min_size=1, max_size=16))
def test_target_equals_eq_3(ranks: list[tuple[int, int]]) -> None:
    counts, more = (int64(list(column)) for column in zip(*ranks))
    active = [rank for rank in ranks if rank[0] > 0]
    most = max((groups for groups, _ in active), default=0)
    samples = min((groups + more for groups, more in active), default=0)
    assert alignment_target(counts, counts + more) == min(most, samples)


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


@given(alignments())
def test_groups_and_returned_samples_equal_algorithm_1(
    case: tuple[np.ndarray, Groups, int],
) -> None:
    lengths, groups, target = case
    aligned = align(groups, target)
    returned = np.setdiff1d(groups.members, aligned.members)
    kept, overflow = aligned_as_in_the_paper(length_lists(groups, lengths), target)
    made = [sorted(group) for group in length_lists(aligned, lengths)]
    assert sorted(made) == sorted(map(sorted, kept))
    assert sorted(lengths[returned].tolist()) == sorted(overflow)


@st.composite
def overdue_alignments(draw: st.DrawFn) -> tuple[np.ndarray, Groups, int, list[int] | None]:
    lengths, groups, target = draw(alignments())
    size = len(groups)
    overdue = draw(st.none() | st.lists(st.integers(0, 4), min_size=size, max_size=size))
    return lengths, groups, target, overdue


@given(overdue_alignments())
def test_a_rank_gets_exactly_the_target_of_which_none_grew_and_the_most_overdue_first(
    case: tuple[np.ndarray, Groups, int, list[int] | None],
) -> None:
    lengths, groups, target, overdue = case
    aligned = align(groups, target, None if overdue is None else int64(overdue))
    assert len(aligned) == target
    assert (aligned.sizes > 0).all()
    assert len(np.unique(aligned.members)) == len(aligned.members)
    assert (np.diff(aligned.shapes(lengths).longest) <= 0).all()
    home = {int(p): g for g in range(len(groups)) for p in groups.group(g)}
    before, after = groups.shapes(lengths), aligned.shapes(lengths)
    for g in range(len(aligned)):
        (origin,) = {home[int(p)] for p in aligned.group(g)}  # one group, never parts of two
        assert after.samples[g] <= before.samples[origin]
        assert after.padded[g] <= before.padded[origin]
    if overdue is not None and len(groups) > target:
        ranked = [(late, int(size)) for late, size in zip(overdue, groups.sizes)]
        kept = [ranked[home[int(aligned.group(g)[0])]] for g in range(len(aligned))]
        assert sorted(kept, reverse=True) == sorted(ranked, reverse=True)[:target]


# Spread over steps


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


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9)
)
def test_every_group_is_emitted_once(
    steps: int, ranks: int, accumulate: int, classes: int, step: int
) -> None:
    order = dealt(steps, ranks, accumulate, classes=classes, step=step)
    assert (np.sort(order, axis=1) == np.arange(steps)).all()


# Of one step or four in an update, and where 2 steps are left of an update before.
@pytest.mark.parametrize(("steps", "ranks", "accumulate", "step"), [(32, 8, 1, 0), (34, 2, 4, 6)])
def test_each_update_holds_a_group_of_each_stratum(
    steps: int, ranks: int, accumulate: int, step: int
) -> None:
    order = dealt(steps, ranks, accumulate, step=step)[:, steps - 32 :]
    updates = order.reshape(ranks, -1, accumulate).swapaxes(0, 1).reshape(-1, 8)
    strata = updates * 8 // steps
    if steps == 32:
        assert (np.sort(strata, axis=1) == np.arange(8)).all()
    assert (np.ptp(strata, axis=1) >= 6).all()
