"""Items placed one by one into bins: greedily, and by best fit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.partition.bins import best_fit_decreasing
from evenstep.plan.partition.greedy import lpt_fill, place

sizes = st.integers(1, 5)


def by_the_rule(
    costs: list[int], tokens: list[int], groups: int, per_group: int, cap: int | None
) -> list[int] | None:
    """The rule of the module, looked up for every item."""
    bins: list[list[int]] = [[] for _ in range(groups * per_group)]
    bin_of = [-1] * len(costs)

    def load(items: list[int]) -> int:
        return sum(costs[item] for item in items)

    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        choices = []
        for g in range(groups):
            mine = range(g * per_group, (g + 1) * per_group)
            group_load = sum(load(bins[b]) for b in mine)
            for b in mine:
                used = sum(tokens[other] for other in bins[b])
                if cap is None or used + tokens[item] <= cap:
                    choices.append((group_load, g, load(bins[b]), len(bins[b]), b))
        if not choices:
            return None
        bin_of[item] = min(choices)[-1]
        bins[bin_of[item]].append(item)
    return bin_of


@given(
    st.lists(st.integers(1, 40), max_size=50).map(lambda found: np.array(found, np.int64)),
    sizes,
    sizes,
    st.integers(40, 90) | st.none(),
    st.booleans(),
)
def test_every_item_goes_where_the_rule_says(
    tokens: np.ndarray, groups: int, per_group: int, cap: int | None, flat: bool
) -> None:
    costs = tokens % 3 if flat else tokens * tokens
    expected = by_the_rule(costs.tolist(), tokens.tolist(), groups, per_group, cap)
    options = {"tokens": tokens, "cap": cap, "per_group": per_group, "reopen": None}
    found = place(costs, groups * per_group, **options)
    assert (None if found is None else found.tolist()) == expected


@given(
    st.lists(st.integers(1, 50), max_size=40).map(lambda found: np.array(found, np.int64)),
    st.integers(1, 6),
    st.integers(1, 120),
    st.randoms(),
)
def test_what_finds_no_room_may_be_left_out_in_whatever_order(lengths, bins, cap, random) -> None:
    costs = lengths * (lengths + 7)
    order = list(range(len(lengths)))
    random.shuffle(order)
    order = order[: random.randint(0, len(order))]
    expected, held, load = [-1] * len(lengths), [0] * bins, [0] * bins
    for position in order:
        open_bins = [b for b in range(bins) if held[b] + lengths[position] <= cap]
        if open_bins:
            chosen = min(open_bins, key=lambda b: (load[b], b))
            expected[position] = chosen
            held[chosen] += int(lengths[position])
            load[chosen] += int(costs[position])
    placed = lpt_fill(lengths, costs, np.array(order, np.int64), bins, cap)
    assert placed.tolist() == expected


def obvious(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Best-fit decreasing as one would say it, looking at every group for every sample."""
    groups: list[list[int]] = []
    free: list[int] = []
    since: list[int] = []  # the sample that brought the group to its free space
    for turn, sample in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        fitting = [g for g in range(len(groups)) if free[g] >= lengths[sample]]
        if fitting:
            chosen = min(fitting, key=lambda g: (free[g], -since[g]))
        else:
            chosen = len(groups)
            groups.append([])
            free.append(capacity)
            since.append(0)
        groups[chosen].append(sample)
        free[chosen] -= lengths[sample]
        since[chosen] = turn
    return groups


# Count, range and capacity decide what matters, so they are drawn; lengths come from a seed.
@given(
    st.integers(0, 150), st.sampled_from([1, 6, 40, 500]), st.floats(0, 3), st.integers(0, 2**32)
)
def test_each_sample_goes_where_least_space_is_left_and_ties_to_the_latest(
    count: int, longest: int, more: float, seed: int
) -> None:
    lengths = np.random.default_rng(seed).integers(1, longest, count, endpoint=True)
    capacity = int(lengths.max(initial=1)) + int(more * longest)
    groups = best_fit_decreasing(lengths, capacity)
    assert [groups.group(g).tolist() for g in range(len(groups))] == obvious(lengths, capacity)
